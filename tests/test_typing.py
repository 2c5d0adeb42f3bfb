"""What type checkers know of a program: its options, the values of answers, and the names that it imports."""

from pathlib import Path

import pytest
from mypy import api

ROOT = Path(__file__).parents[1]
PROGRAM = """
from promptcache import Choice, Completion, ContextLengthExceeded, Engine, InvalidGeneration, Prompt, PromptError, Usage

engine = Engine.from_pretrained("demo", {history}=False, keep="{int8}", revision="main")
prompt = Prompt("travel").user("Where to?")
try:
    answer = engine.generate(prompt, output=int, {max_new_tokens}=5, do_sample=False)
    days: int = answer.parsed
    texts: list[str] = [each.text for each in engine.generate_batch([prompt], {seed}=1)]
    usage: Usage = engine.chat(prompt).say(output=list[int]).usage
    chosen: Completion = engine.generate(prompt, output=Choice(["a", "b"]))
    for stream in (engine.stream(prompt, output=int, {top_k}=1), engine.chat(prompt).stream("Why?", output=int)):
        streamed: int | None = stream.completion.parsed if stream.completion else None
    engine.service().submit(prompt, print, {salt}="a")
except (PromptError, ContextLengthExceeded, InvalidGeneration) as error:
    print(error)


async def ask() -> int | None:
    answer = await engine.agenerate(prompt, output=int, {logprobs}=1)
    async with engine.astream(prompt, output=int, {top_p}=0.5) as stream:
        return stream.completion.parsed if stream.completion else answer.parsed
"""
OPTIONS = ("history", "max_new_tokens", "seed", "top_k", "salt", "logprobs", "top_p")  # in the order of the program
NAMES = {name: name for name in (*OPTIONS, "int8")}


def errors(folder: Path, **misspelt: str) -> list[str]:
    """Check a program with `mypy --strict`; return its errors."""
    file = folder / "program.py"
    file.write_text(PROGRAM.format_map(NAMES | misspelt), encoding="utf-8")
    out, fault, _ = api.run(["--strict", "--config-file", str(ROOT / "pyproject.toml"), str(file)])
    assert not fault
    return [line for line in out.splitlines() if ": error: " in line]


def test_misspelt_options_are_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has one error, in every way of asking, and a program without mistakes has none."""
    monkeypatch.chdir(ROOT)

    assert errors(tmp_path) == []
    wrong = {name: f"{name}s" for name in OPTIONS}
    found = errors(tmp_path, **wrong)
    assert len(found) == len(wrong)
    assert all(
        f'Unexpected keyword argument "{name}"' in each for name, each in zip(wrong.values(), found, strict=True)
    )
    assert len(errors(tmp_path, int8="int2")) == 1


def test_values_have_the_type_of_the_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The value of an answer with `output=int` is an int, not a text, also of a stream."""
    monkeypatch.chdir(ROOT)
    wrong = (
        PROGRAM.replace("days: int", "days: str").replace("streamed: int", "streamed: str").replace("> int", "> str")
    )
    monkeypatch.setitem(globals(), "PROGRAM", wrong)

    found = errors(tmp_path)
    assert len(found) == len(("days", "streamed", "ask"))
    assert all('"int' in each for each in found)
