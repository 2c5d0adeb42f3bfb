"""The travel schema, an engine that has it, and every way to ask an engine one prompt."""

import queue
from typing import Any

from promptcache import Completion, Engine
from promptcache.testing.byte_tokenizer import ByteTokenizer
from promptcache.testing.tiny_model import tiny_model

SCHEMA = """<schema name="travel">You plan trips.
<module name="plan">Stay <parameter name="days" length="8" placeholder="n days"/>.</module>
<union name="city"><module name="miami">Miami has beaches.</module><module name="paris">Paris has soup.</module></union>
</schema>"""
PROMPT = '<prompt schema="travel"><plan days="nine"/><paris/>Where to?</prompt>'
LONGER = '<prompt schema="travel"><miami/>Tell me more about all of it, please.</prompt>'
GREEDY: dict[str, Any] = {"do_sample": False, "max_new_tokens": 8}
WAYS = ("generate", "stream", "batch", "service", "chat")


def engine_of(model: Any = None, tokenizer: Any = None, schema: Any = SCHEMA, **settings: Any) -> Engine:
    """Return an engine with a schema, whose modules are too short for the default repair; by default a tiny one."""
    settings = {"repair": "slots", **settings}
    made = Engine(tiny_model() if model is None else model, tokenizer or ByteTokenizer(), **settings)
    made.add_schema(schema)
    return made


def answered(engine: Engine, prompt: Any, way: str = "generate", **options: Any) -> Completion:
    """Ask a prompt in one of the ways. A chat answers the question at its end."""
    match way:
        case "stream":
            with engine.stream(prompt, **options) as stream:
                text = "".join(stream)
            assert stream.completion is not None
            assert (text, stream.reasoning or None) == (stream.completion.text, stream.completion.reasoning)
            return stream.completion
        case "batch":
            return engine.generate_batch([prompt], **options)[0]
        case "service":
            with engine.service() as service:
                return by_service(service, prompt, **options)
        case "chat":
            return engine.chat(prompt).say(**options)
    return engine.generate(prompt, **options)


def by_service(service: Any, prompt: Any, **options: Any) -> Completion:
    items: queue.SimpleQueue[Any] = queue.SimpleQueue()
    service.submit(prompt, items.put, **options)
    while not isinstance(item := items.get(timeout=60), Completion):
        if isinstance(item, BaseException):
            raise item
    return item
