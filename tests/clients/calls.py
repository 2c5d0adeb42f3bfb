"""Calls of clients of the APIs of OpenAI, each with the base URL of a server. All of them ask one question.

A call returns the text of the answer, or raises the error that the client makes of a refusal.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Callable, Iterable, Mapping
from typing import Any, Literal, TypeAlias

import instructor
import litellm
import outlines
from instructor.core.exceptions import IncompleteOutputException, InstructorRetryException
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_openai import ChatOpenAI, OpenAI
from llama_index.core.agent.workflow import FunctionAgent, ToolCallResult
from llama_index.core.chat_engine import SimpleChatEngine
from llama_index.core.llms import ChatMessage
from llama_index.core.prompts import PromptTemplate
from llama_index.llms.openai_like import OpenAILike
from openai import AsyncOpenAI
from openai import OpenAI as Client
from pydantic import BaseModel, ConfigDict

KEY, MODEL = "alice", "demo"
QUESTION = "What is the best dish of Miami?"
MESSAGES: list[Any] = [{"role": "user", "content": QUESTION}]
TEXT = "The best dish of Miami is"
OPTIONS: dict[str, Any] = {"model": MODEL, "temperature": 0, "max_tokens": 12}
FORMED: dict[str, Any] = {**OPTIONS, "max_tokens": 128}
RESPONSE: dict[str, Any] = {"model": MODEL, "temperature": 0, "max_output_tokens": 12}
GREEDY = {"temperature": 0}
MODULES = {"prompt_cache": {"schema": "travel", "use": ["miami"]}}
TOOL: Any = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object", "properties": {}}}}
ONE_CALL: dict[str, Any] = {"tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False}

Call: TypeAlias = Callable[[str], str]


class Dish(BaseModel):
    """A structured answer."""

    model_config = ConfigDict(extra="forbid")

    dish: Literal["stone crab", "onion soup"]


def look_up(place: str) -> str:
    """Look up a place."""
    return place


def client(url: str) -> Client:
    return Client(base_url=url, api_key=KEY, max_retries=0)


def joined(pieces: Iterable[str | None]) -> str:
    """Return the text of a stream of more than one piece."""
    found = [each for each in pieces if each]
    assert len(found) > 1, "a stream has several pieces"
    return "".join(found)


async def joined_async(pieces: AsyncIterable[str | None]) -> str:
    return joined([each async for each in pieces])


def openai_chunks(chunks: Iterable[Any]) -> str:
    return joined(each.choices[0].delta.content for each in chunks if each.choices)


def openai_helper(url: str) -> str:
    with client(url).chat.completions.stream(messages=MESSAGES, **OPTIONS) as stream:
        stream.until_done()
        return str(stream.get_final_completion().choices[0].message.content)


def openai_usage(url: str) -> str:
    options = {"stream": True, "stream_options": {"include_usage": True}}
    chunks = list(client(url).chat.completions.create(messages=MESSAGES, **OPTIONS, **options))
    assert chunks[-1].usage.completion_tokens > 0
    return openai_chunks(chunks)


def openai_logprobs(url: str) -> str:
    made = client(url).chat.completions.create(messages=MESSAGES, logprobs=True, top_logprobs=2, **OPTIONS).choices[0]
    assert all(len(each.top_logprobs) == 2 for each in made.logprobs.content)
    return str(made.message.content)


def openai_choices(url: str) -> str:
    first, second = client(url).chat.completions.create(messages=MESSAGES, n=2, **OPTIONS).choices
    assert first.message.content == second.message.content
    return str(first.message.content)


def openai_raw(url: str) -> str:
    raw = client(url).chat.completions.with_raw_response.create(messages=MESSAGES, **OPTIONS)
    assert raw.headers["x-request-id"]
    return str(raw.parse().choices[0].message.content)


def openai_async(url: str) -> str:
    async def ask() -> str:
        async with AsyncOpenAI(base_url=url, api_key=KEY, max_retries=0) as asked:
            made = await asked.chat.completions.create(messages=MESSAGES, **OPTIONS)
            chunks = await asked.chat.completions.create(messages=MESSAGES, stream=True, **OPTIONS)
            text = await joined_async(each.choices[0].delta.content async for each in chunks)
        assert text == made.choices[0].message.content
        return text

    return asyncio.run(ask())


def openai_texts(url: str) -> str:
    made = client(url).completions.create(prompt=[TEXT, TEXT], **OPTIONS).choices
    assert [each.index for each in made] == [0, 1]
    assert made[0].text == made[1].text
    return made[0].text


def openai_modules(url: str) -> str:
    made = client(url).chat.completions.create(messages=MESSAGES, extra_body=MODULES, **OPTIONS)
    assert made.usage.prompt_tokens_details.cached_tokens > 0
    return str(made.choices[0].message.content)


def openai_models(url: str) -> str:
    found = client(url).models
    return found.retrieve(next(each.id for each in found.list() if each.id == MODEL)).id


def openai_tools(url: str) -> str:
    made = client(url).chat.completions.create(messages=MESSAGES, **ONE_CALL, **FORMED)
    (call,) = made.choices[0].message.tool_calls or ()
    assert made.choices[0].finish_reason == "tool_calls"
    return str(call.function.name)  # type: ignore[union-attr]


def openai_tools_stream(url: str) -> str:
    chunks = client(url).chat.completions.create(messages=MESSAGES, stream=True, **ONE_CALL, **FORMED)
    calls = [call for each in chunks for call in each.choices[0].delta.tool_calls or ()]
    return joined_calls(calls)


def joined_calls(calls: Iterable[Any]) -> str:
    """Return the name of the only call of a stream."""
    (name,) = [each.function.name for each in calls if each.function.name]
    return str(name)


def openai_parse(url: str) -> str:
    made = client(url).chat.completions.parse(messages=MESSAGES, response_format=Dish, **FORMED)
    assert made.choices[0].message.parsed is not None
    return made.choices[0].message.parsed.dish


def openai_responses_stream(url: str) -> str:
    events = list(client(url).responses.create(input=QUESTION, stream=True, **RESPONSE))
    assert events[-1].type in ("response.completed", "response.incomplete")
    return joined(each.delta for each in events if each.type == "response.output_text.delta")


def openai_responses_helper(url: str) -> str:
    with client(url).responses.stream(input=QUESTION, **RESPONSE) as stream:
        stream.until_done()
        return stream.get_final_response().output_text


def openai_responses_parse(url: str) -> str:
    return dish_of(client(url).responses.parse(input=QUESTION, text_format=Dish, model=MODEL).output_parsed)


def openai_earlier(url: str) -> str:
    first = client(url).responses.create(input=QUESTION, **RESPONSE)
    again = client(url).responses.create(input=QUESTION, previous_response_id=first.id, **RESPONSE)
    assert again.usage is not None
    assert first.usage is not None
    assert again.usage.input_tokens > first.usage.total_tokens
    return first.output_text


def openai_responses_tools(url: str) -> str:
    tool: Any = {"type": "function", **TOOL["function"]}
    made = client(url).responses.create(input=QUESTION, tools=[tool], tool_choice="required", model=MODEL)
    return next(each.name for each in made.output if each.type == "function_call")


def lite_tools(url: str) -> str:
    made = litellm.completion(messages=MESSAGES, **lite(url, **ONE_CALL, **_LONGER))
    (call,) = made.choices[0].message.tool_calls
    return str(call.function.name)


def lite_format(url: str) -> str:
    made = litellm.completion(messages=MESSAGES, response_format=Dish, **lite(url, **_LONGER))
    return Dish.model_validate_json(lite_text(made)).dish


_LONGER = {"max_tokens": FORMED["max_tokens"]}


def lite(url: str, **options: Any) -> dict[str, Any]:
    return {**OPTIONS, "model": f"openai/{MODEL}", "api_base": url, "api_key": KEY, "num_retries": 0, **options}


def lite_text(made: Any) -> str:
    return str(made.choices[0].message.content)


def lite_async(url: str) -> str:
    async def ask() -> str:
        return lite_text(await litellm.acompletion(messages=MESSAGES, **lite(url)))

    return asyncio.run(ask())


def lite_batch(url: str) -> str:
    first, second = litellm.batch_completion(messages=[MESSAGES, MESSAGES], **lite(url))
    assert lite_text(first) == lite_text(second)
    return lite_text(first)


def chat_openai(url: str, **options: Any) -> Any:
    return ChatOpenAI(**{**OPTIONS, **options}, base_url=url, api_key=KEY, max_retries=0)


def chat_chain(url: str) -> str:
    prompt = ChatPromptTemplate.from_messages([("user", "What is the {what} of Miami?")])
    return str((prompt | chat_openai(url) | StrOutputParser()).invoke({"what": "best dish"}))


def chat_async(url: str) -> str:
    async def ask() -> str:
        model = chat_openai(url)
        text = await joined_async(each.content async for each in model.astream(MESSAGES))
        assert text == (await model.ainvoke(MESSAGES)).content
        return text

    return asyncio.run(ask())


def chat_batch(url: str) -> str:
    first, second = chat_openai(url).batch([MESSAGES, MESSAGES])
    assert first.content == second.content
    return str(first.content)


def chat_usage(url: str) -> str:
    made = chat_openai(url).invoke(MESSAGES)
    assert made.usage_metadata["output_tokens"] > 0
    assert made.response_metadata["finish_reason"] == "stop"
    return str(made.content)


def text_openai(url: str, **options: Any) -> Any:
    return OpenAI(**OPTIONS, base_url=url, api_key=KEY, max_retries=0, **options)  # type: ignore[arg-type]


def text_batch(url: str) -> str:
    first, second = text_openai(url).batch([TEXT, TEXT])
    assert first == second
    return str(first)


def text_async(url: str) -> str:
    async def ask() -> str:
        return str(await text_openai(url).ainvoke(TEXT))

    return asyncio.run(ask())


def llama(url: str, **options: Any) -> Any:
    settings = {**OPTIONS, "is_chat_model": True, "max_retries": 0, "context_window": 512, **options}
    return OpenAILike(api_base=url, api_key=KEY, **settings)


def llama_messages() -> list[ChatMessage]:
    return [ChatMessage(role="user", content=QUESTION)]


def llama_async(url: str) -> str:
    async def ask() -> str:
        model = llama(url)
        pieces = await model.astream_chat(llama_messages())
        text = await joined_async(each.delta async for each in pieces)
        assert text == (await model.achat(llama_messages())).message.content
        return text

    return asyncio.run(ask())


def llama_agent(url: str) -> str:
    """Return the name of the tool that an agent calls before it answers."""

    async def ask() -> str:
        agent = FunctionAgent(
            tools=[look_up],
            llm=llama(url, is_function_calling_model=True, **_LONGER),
            initial_tool_choice="look_up",
            allow_parallel_tool_calls=False,
        )
        handler = agent.run(QUESTION)
        called = [each.tool_name async for each in handler.stream_events() if isinstance(each, ToolCallResult)]
        assert str((await handler).response.content)
        return str(called[0])

    return asyncio.run(ask())


def outline(url: str) -> Any:
    return outlines.from_openai(client(url), MODEL)


def dish_of(made: Any) -> str:
    """Return the dish of a structured answer."""
    assert isinstance(made, Dish)
    return made.dish


def structured(url: str, mode: instructor.Mode) -> str:
    made = instructor.from_openai(client(url), mode=mode)
    try:
        return dish_of(made.chat.completions.create(messages=MESSAGES, response_model=Dish, max_retries=0, **FORMED))
    except (IncompleteOutputException, InstructorRetryException) as error:  # the demo model writes no JSON
        return str(error.last_completion.choices[0].message.content)


CALLS: Mapping[str, Mapping[str, Call]] = {
    "openai": {
        "chat.completions.create": lambda url: str(
            client(url).chat.completions.create(messages=MESSAGES, **OPTIONS).choices[0].message.content
        ),
        "chat.completions.create(stream=True)": lambda url: openai_chunks(
            client(url).chat.completions.create(messages=MESSAGES, stream=True, **OPTIONS)
        ),
        "chat.completions.stream": openai_helper,
        "stream_options": openai_usage,
        "logprobs": openai_logprobs,
        "n=2": openai_choices,
        "with_raw_response": openai_raw,
        "AsyncOpenAI": openai_async,
        "extra_body with modules": openai_modules,
        "completions.create": lambda url: client(url).completions.create(prompt=TEXT, **OPTIONS).choices[0].text,
        "completions.create(stream=True)": lambda url: joined(
            each.choices[0].text for each in client(url).completions.create(prompt=TEXT, stream=True, **OPTIONS)
        ),
        "completions.create(prompt=[…])": openai_texts,
        "models.list, models.retrieve": openai_models,
        "tools": openai_tools,
        "tools(stream=True)": openai_tools_stream,
        "chat.completions.parse": openai_parse,
        "images": lambda url: str(
            client(url).chat.completions.create(
                messages=[
                    {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,"}}]}
                ],
                **OPTIONS,
            )
        ),
        "responses.create": lambda url: client(url).responses.create(input=QUESTION, **RESPONSE).output_text,
        "responses.create(stream=True)": openai_responses_stream,
        "responses.stream": openai_responses_helper,
        "responses.parse": openai_responses_parse,
        "previous_response_id": openai_earlier,
        "responses with tools": openai_responses_tools,
        "embeddings.create": lambda url: str(client(url).embeddings.create(model=MODEL, input=QUESTION)),
    },
    "litellm": {
        "completion": lambda url: lite_text(litellm.completion(messages=MESSAGES, **lite(url))),
        "completion(stream=True)": lambda url: openai_chunks(
            litellm.completion(messages=MESSAGES, stream=True, **lite(url))
        ),
        "acompletion": lite_async,
        "batch_completion": lite_batch,
        "completion of hosted_vllm/": lambda url: lite_text(
            litellm.completion(messages=MESSAGES, **lite(url, model=f"hosted_vllm/{MODEL}"))
        ),
        "text_completion": lambda url: str(
            litellm.text_completion(prompt=TEXT, **lite(url, model=f"text-completion-openai/{MODEL}")).choices[0].text
        ),
        "text_completion(prompt=[…])": lambda url: str(
            litellm.text_completion(prompt=[TEXT, TEXT], **lite(url, model=f"text-completion-openai/{MODEL}"))
            .choices[1]
            .text
        ),
        "tools": lite_tools,
        "response_format": lite_format,
    },
    "langchain ChatOpenAI": {
        "invoke": lambda url: str(chat_openai(url).invoke(MESSAGES).content),
        "usage and metadata": chat_usage,
        "stream": lambda url: joined(each.content for each in chat_openai(url).stream(MESSAGES)),
        "batch": chat_batch,
        "ainvoke, astream": chat_async,
        "a chain with a parser": chat_chain,
        "bind(stop=…)": lambda url: str(chat_openai(url).bind(stop=["unicorn"]).invoke(MESSAGES).content),
        "bind_tools": lambda url: str(
            chat_openai(url, **_LONGER)
            .bind_tools([look_up], tool_choice="required")
            .invoke(MESSAGES)
            .tool_calls[0]["name"]
        ),
        "with_structured_output": lambda url: dish_of(
            chat_openai(url, **_LONGER).with_structured_output(Dish).invoke(MESSAGES)
        ),
        "use_responses_api=True": lambda url: str(chat_openai(url, use_responses_api=True).invoke(MESSAGES).text),
    },
    "langchain OpenAI": {
        "invoke": lambda url: str(text_openai(url).invoke(TEXT)),
        "stream": lambda url: joined(text_openai(url).stream(TEXT)),
        "batch": text_batch,
        "ainvoke": text_async,
    },
    "llama-index OpenAILike": {
        "complete": lambda url: str(llama(url).complete(QUESTION).text),
        "stream_complete": lambda url: joined(each.delta for each in llama(url).stream_complete(QUESTION)),
        "chat": lambda url: str(llama(url).chat(llama_messages()).message.content),
        "stream_chat": lambda url: joined(each.delta for each in llama(url).stream_chat(llama_messages())),
        "achat, astream_chat": llama_async,
        "predict": lambda url: str(
            llama(url).predict(PromptTemplate("What is the {what} of Miami?"), what="best dish")
        ),
        "SimpleChatEngine": lambda url: str(SimpleChatEngine.from_defaults(llm=llama(url)).chat(QUESTION)),
        "complete(is_chat_model=False)": lambda url: str(llama(url, is_chat_model=False).complete(TEXT).text),
        "structured_predict": lambda url: dish_of(
            llama(url, is_function_calling_model=True, **_LONGER).structured_predict(Dish, PromptTemplate(QUESTION))
        ),
        "FunctionAgent": llama_agent,
    },
    "outlines": {
        "model(prompt)": lambda url: str(outline(url)(QUESTION, temperature=0, max_tokens=12)),
        "model.stream": lambda url: joined(outline(url).stream(QUESTION, temperature=0, max_tokens=12)),
        "model(prompt, type)": lambda url: dish_of(
            Dish.model_validate_json(outline(url)(QUESTION, Dish, temperature=0, **_LONGER))
        ),
    },
    "instructor": {
        "create(response_model=None)": lambda url: str(
            instructor.from_openai(client(url))
            .chat.completions.create(messages=MESSAGES, response_model=None, **OPTIONS)
            .choices[0]
            .message.content
        ),
        "Mode.TOOLS": lambda url: structured(url, instructor.Mode.TOOLS),
        "Mode.JSON": lambda url: structured(url, instructor.Mode.JSON),
        "Mode.JSON_SCHEMA": lambda url: structured(url, instructor.Mode.JSON_SCHEMA),
        "Mode.MD_JSON": lambda url: structured(url, instructor.Mode.MD_JSON),
    },
}
"""The calls of each client, by the name that the table of docs/serving.md has for them."""
