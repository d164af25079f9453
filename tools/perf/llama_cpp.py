#!/usr/bin/env python3
"""The other side of the CPU runtime's benchmark: times llama.cpp on the same file and the same tokens.

Reads one JSON object a line: {"threads": 1, "prompt": [ids], "decode": 16}. Answers each with
{"prefill_s": seconds, "decode_s": seconds}. Needs `python3 -m pip install llama-cpp-python`.
"""

import json
import sys
import time


def main():
    from llama_cpp import Llama, __version__

    path = sys.argv[1]
    print(json.dumps({"name": f"llama-cpp-python {__version__}"}), flush=True)
    models = {}
    for line in sys.stdin:
        job = json.loads(line)
        threads = job["threads"]
        if threads not in models:
            models[threads] = Llama(
                path, n_ctx=2048, n_batch=512, n_threads=threads, n_threads_batch=threads, verbose=False
            )
        model = models[threads]
        model.reset()
        start = time.perf_counter()
        model.eval(job["prompt"])
        prefilled = time.perf_counter()
        for token in job["prompt"][: job["decode"]]:
            model.eval([token])
        done = time.perf_counter()
        print(json.dumps({"prefill_s": prefilled - start, "decode_s": done - prefilled}), flush=True)


if __name__ == "__main__":
    main()
