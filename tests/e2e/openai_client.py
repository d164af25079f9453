"""Drives a Blockwire router with OpenAI's own client: `openai_client.py BASE_URL`.

Ends with status 0 and "all checks passed", or with the first check that failed.
"""

import sys

import openai

# What the checkpoint calls itself; the file's name is the model's.
MODEL_ALIAS = "Smollm2 135M 8k Lc100K Mix1 Ep2"
QUESTION = [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}]


def check_models(client):
    models = client.models.list().data
    assert len(models) == 1, models
    model = models[0]
    assert model.id == "SmolLM2-135M-Instruct.Q4_1", model
    assert model.object == "model" and model.owned_by and model.created > 0, model
    assert client.models.retrieve(model.id).id == model.id
    return model.id


def check_usage(usage, completion_tokens=None, cached=False):
    assert usage.prompt_tokens > 0, usage
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens, usage
    assert 0 <= usage.prompt_tokens_details.cached_tokens < usage.prompt_tokens, usage
    assert not cached or usage.prompt_tokens_details.cached_tokens > 0, usage
    if completion_tokens is not None:
        assert usage.completion_tokens == completion_tokens, usage


def check_chat(client, model):
    asked = dict(model=model, messages=QUESTION, max_tokens=24, temperature=0)
    whole = client.chat.completions.create(**asked)
    assert whole.object == "chat.completion" and whole.model == model, whole
    choice = whole.choices[0]
    assert choice.message.role == "assistant" and "Paris" in choice.message.content, choice
    assert choice.finish_reason in ("stop", "length"), choice
    check_usage(whole.usage)

    text, reasons, usages, roles = "", [], [], []
    options = {"include_usage": True}
    for chunk in client.chat.completions.create(stream=True, stream_options=options, **asked):
        assert chunk.object == "chat.completion.chunk" and chunk.id.startswith("chatcmpl-"), chunk
        if chunk.usage:
            usages.append(chunk.usage)
        for part in chunk.choices:
            text += part.delta.content or ""
            roles += [part.delta.role] if part.delta.role else []
            reasons += [part.finish_reason] if part.finish_reason else []
    assert text == choice.message.content, (text, choice.message.content)
    assert roles == ["assistant"] and reasons == [choice.finish_reason], (roles, reasons)
    assert len(usages) == 1, usages
    check_usage(usages[0], whole.usage.completion_tokens, cached=True)
    assert usages[0].prompt_tokens == whole.usage.prompt_tokens, (usages, whole.usage)


def check_completions(client, model):
    asked = dict(model=model, prompt="The capital of France is", max_tokens=12, temperature=0.8)
    whole = client.completions.create(seed=5, **asked)
    assert whole.object == "text_completion" and whole.choices[0].text, whole
    check_usage(whole.usage)
    stream = client.completions.create(seed=5, stream=True, **asked)
    text = "".join(part.text for chunk in stream for part in chunk.choices)
    assert text == whole.choices[0].text, (text, whole.choices[0].text)
    ids = client.completions.create(
        model=model, prompt=[504, 713, 216, 33], max_tokens=3, extra_body={"ignore_eos": True}
    )
    assert ids.usage.prompt_tokens == 4, ids.usage
    check_usage(ids.usage, completion_tokens=3)


def check_options(client, model):
    stopped = client.completions.create(
        model=model, prompt="1, 2, 3, 4, 5, 6,", stop=["9"], max_tokens=40, temperature=0
    )
    choice = stopped.choices[0]
    assert choice.finish_reason == "stop" and "9" not in choice.text and "7" in choice.text, choice
    chat = client.chat.completions.create(
        model=model, messages=QUESTION, max_completion_tokens=3, n=2, temperature=1.0, seed=3,
        logprobs=True, top_logprobs=2,
    )
    assert [choice.index for choice in chat.choices] == [0, 1], chat
    for choice in chat.choices:
        assert len(choice.logprobs.content) == 3, choice
        assert all(len(token.top_logprobs) == 2 for token in choice.logprobs.content), choice
        assert all(token.logprob <= 0 for token in choice.logprobs.content), choice
    check_usage(chat.usage, completion_tokens=6)
    alias = client.chat.completions.create(model=MODEL_ALIAS, messages=QUESTION, max_tokens=1)
    assert alias.usage.completion_tokens == 1, alias


def refused(kind, status, call):
    try:
        answer = call()
    except kind as error:
        assert error.status_code == status, (error.status_code, status)
        assert error.type and error.code and error.message, error.body
        return error
    raise AssertionError(f"served instead of {kind.__name__}: {answer}")


def check_errors(client, model):
    chat, completions = client.chat.completions.create, client.completions.create
    error = refused(
        openai.NotFoundError, 404, lambda: chat(model="gpt-9", messages=QUESTION, max_tokens=1)
    )
    assert error.code == "model_not_found" and error.param == "model", error.body
    bad = openai.BadRequestError
    error = refused(bad, 400, lambda: chat(model=model, messages=QUESTION, max_tokens=0))
    assert error.param == "max_tokens", error.body
    refused(bad, 400, lambda: chat(model=model, messages=[], max_tokens=1))
    refused(bad, 400, lambda: chat(model=model, messages=QUESTION, temperature=-1))
    refused(bad, 400, lambda: completions(model=model, prompt="", max_tokens=1))
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    refused(bad, 400, lambda: chat(model=model, messages=QUESTION, tools=tools))
    refused(bad, 400, lambda: chat(model=model, messages=QUESTION, max_tokens=0, stream=True))
    long = [5] * 20_000
    refused(openai.APIStatusError, 413, lambda: completions(model=model, prompt=long))
    refused(openai.NotFoundError, 404, lambda: client.models.retrieve("gpt-9"))
    refused(openai.NotFoundError, 404, lambda: client.embeddings.create(model=model, input="x"))


def main():
    client = openai.OpenAI(base_url=sys.argv[1], api_key="none", max_retries=0, timeout=300)
    with client:
        model = check_models(client)
        for check in [check_chat, check_completions, check_options, check_errors, check_chat]:
            check(client, model)
            print(check.__name__, flush=True)
    print("all checks passed")


if __name__ == "__main__":
    main()
