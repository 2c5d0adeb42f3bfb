"""The length of the way of a request: `python -m benchmarks path`.

It counts what somebody has to know who reads a call: the functions of ours that run, and the types of records that are
made, from `generate(prompt_xml)` to the first token. A function counts once, however often it runs. Generator
expressions and lambdas belong to the function around them; properties and checks of values count.
"""

from __future__ import annotations

import sys
from types import CodeType, FrameType

import promptcache
from benchmarks.common import BenchReport
from promptcache.engine import Engine

_SCHEMA = """<schema name="path">
  <user><module name="terms">All orders ship within two days.</module>
  <module name="product">The lamp <parameter name="color" length="8"/> costs ten dollars.</module></user>
</schema>"""
_PROMPT = '<prompt schema="path"><terms/><product color="{color}"/><user>{question}</user></prompt>'
_ROOT = promptcache.__path__[0]


class _PathCounter:
    """A streamer that ends the count at the first token: `generate` first gives it the tokens of the prompt."""

    def __init__(self) -> None:
        self.functions: dict[str, None] = {}
        self.records: dict[str, None] = {}
        self._num_calls = 0

    def see(self, frame: FrameType, event: str, _: object) -> None:
        """Count a call; for `sys.setprofile`."""
        if event != "call":
            return
        code = frame.f_code
        if code.co_filename.startswith(_ROOT):
            if not code.co_name.startswith("<"):
                self.functions[_name(code)] = None
        elif code.co_name == "__init__" and type(made := frame.f_locals.get("self")).__module__.startswith(
            "promptcache"
        ):
            self.records[type(made).__qualname__] = None  # the `__init__` of a dataclass has no file

    def put(self, _: object) -> None:
        """Take tokens."""
        self._num_calls += 1
        if self._num_calls == 2:
            sys.setprofile(None)

    def end(self) -> None:
        """Nothing is left to do."""


def count_call_path() -> BenchReport:
    """Count functions and types of records of a warm request with an argument and a question, on the demo model."""
    engine = Engine.from_pretrained()
    engine.add_schema(_SCHEMA)
    for color in ("red", "blue"):
        engine.generate(_PROMPT.format(color=color, question="Which one?"), max_new_tokens=1)
    counter = _PathCounter()
    sys.setprofile(counter.see)
    try:
        engine.generate(_PROMPT.format(color="green", question="What is it?"), max_new_tokens=1, streamer=counter)
    finally:
        sys.setprofile(None)
    files = {name.split(":")[0] for name in counter.functions}
    counts = {"functions": len(counter.functions), "files": len(files), "record types": len(counter.records)}
    return BenchReport(
        name="path",
        title="What a request passes before its first token",
        columns=tuple(counts),
        cells=(tuple(map(str, counts.values())),),
        rows=({**counts, "names": [*counter.functions], "records": [*counter.records]},),
    )


def _name(code: CodeType) -> str:
    return f"{code.co_filename.removeprefix(_ROOT)[1:]}:{code.co_qualname}"
