"""Drives a Blockwire router with LangChain's ChatOpenAI: `langchain_client.py BASE_URL`.

Ends with status 0 and "all checks passed", or with the first check that failed.
"""

import asyncio
import sys

import openai
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_openai import ChatOpenAI, OpenAI

MODEL = "SmolLM2-135M-Instruct.Q4_1"
QUESTION = [
    SystemMessage("You answer in one sentence."),
    HumanMessage("What is the capital of France?"),
]


def chat(url, **options):
    return ChatOpenAI(base_url=url, api_key="none", model=MODEL, temperature=0, max_tokens=24,
                      max_retries=0, **options)


def check_usage(message):
    usage = message.usage_metadata
    assert usage["input_tokens"] > 0 and 0 < usage["output_tokens"] <= 24, usage
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"], usage


def check_whole_and_stream(url):
    whole = chat(url).invoke(QUESTION)
    assert isinstance(whole, AIMessage) and "Paris" in whole.content, whole
    assert whole.response_metadata["finish_reason"] in ("stop", "length"), whole
    assert whole.response_metadata["model_name"] == MODEL, whole
    check_usage(whole)

    pieces = list(chat(url, stream_usage=True).stream(QUESTION))
    assert len(pieces) > 4, pieces
    streamed = pieces[0]
    for piece in pieces[1:]:
        streamed += piece
    assert streamed.content == whole.content, (streamed, whole)
    check_usage(streamed)
    return whole.content


def check_chain_and_batch(url, answer):
    prompt = ChatPromptTemplate([("system", "You answer in one sentence."),
                                 ("human", "What is the capital of {country}?")])
    chain = prompt | chat(url) | StrOutputParser()
    answers = chain.batch([{"country": "France"}, {"country": "Italy"}])
    assert answers[0] == answer and "Rome" in answers[1], answers
    stopped = (prompt | chat(url).bind(stop=["Paris"]) | StrOutputParser()).invoke({"country": "France"})
    assert stopped == answer.split("Paris")[0], stopped

    async def several():
        return await asyncio.gather(*(chain.ainvoke({"country": "France"}) for _ in range(4)))

    assert asyncio.run(several()) == [answer] * 4


def check_logprobs(url):
    told = chat(url, logprobs=True, top_logprobs=2).invoke(QUESTION)
    tokens = told.response_metadata["logprobs"]["content"]
    assert len(tokens) == told.usage_metadata["output_tokens"], told
    assert all(len(token["top_logprobs"]) == 2 for token in tokens), tokens


def check_completion(url):
    model = OpenAI(base_url=url, api_key="none", model=MODEL, temperature=0, max_tokens=8)
    whole = model.invoke("The capital of France is")
    assert "Paris" in whole, whole
    assert "".join(model.stream("The capital of France is")) == whole


def check_errors(url):
    for options, error in [
        ({"model": "another"}, openai.NotFoundError),
        ({"max_tokens": 100_000}, openai.BadRequestError),
    ]:
        try:
            chat(url).bind(**options).invoke(QUESTION)
        except error:
            continue
        raise AssertionError(f"{options} is no {error}")


def main():
    url = sys.argv[1]
    answer = check_whole_and_stream(url)
    check_chain_and_batch(url, answer)
    check_logprobs(url)
    check_completion(url)
    check_errors(url)
    print("all checks passed")


main()
