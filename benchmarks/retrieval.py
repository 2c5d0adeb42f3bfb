"""The benchmark of retrieval: `python -m benchmarks retrieval`.

The documents are docstrings of Python's standard library, and the retriever is BM25. A question quotes the first
sentence of a docstring, and asks for the name of the function.
"""

from __future__ import annotations

import inspect
import random
import re
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib import import_module
from statistics import median
from typing import NamedTuple

import bm25s

from benchmarks.common import BenchReport
from promptcache.decode import Completion
from promptcache.engine import Engine
from promptcache.language import Context
from promptcache.progress import Progress, silent
from promptcache.retrieval import Documents

_SKIPPED = {"antigravity", "idlelib", "lib2to3", "this", "tkinter", "turtle", "turtledemo"}
"""Modules that open a window or print when they are imported, or need one."""

INSTRUCTION = "Answer with the name of the function, and nothing else."
SCHEMA = f"""
<schema name="manual">
  <system>{INSTRUCTION}</system>
  <user>Functions:<collection name="functions" context="{{context}}"/></user>
</schema>"""
_MOST_WORDS = 80
_MAX_NEW_TOKENS = 12
_PLAIN = "ordinary prefill"


class Function(NamedTuple):
    """A document: a function with its docstring, and the question to which it is the answer."""

    name: str
    text: str
    question: str


def compare_retrieval(
    engine: Engine,
    num_documents: int,
    num_questions: int,
    num_found: int,
    seed: int,
    context: Context,
    repairs: Sequence[str],
    progress: Progress = silent,
) -> BenchReport:
    """Answer from documents in random order: by ordinary prefill, and with their KV, which is in memory.

    Args:
        context: What documents attend to when they are encoded.
        repairs: Settings of the requests that use KV.

    Returns:
        A row for each way: right answers, answers equal to those of ordinary prefill, and the time to first token.
    """
    chance = random.Random(seed)
    functions = chance.sample([*_functions()], num_documents)
    index = bm25s.BM25()
    texts = [each.text for each in functions]
    index.index(bm25s.tokenize(texts, show_progress=False), show_progress=False)
    engine.add_schema(SCHEMA.format(context=context))
    documents = Documents(engine, "manual", "functions")
    plain: list[Completion] = []
    cached: dict[str, list[Completion]] = {repair: [] for repair in repairs}
    asked = functions[:num_questions]
    for number, function in enumerate(asked):
        progress("questions", number, len(asked))
        query = bm25s.tokenize(function.question, show_progress=False)
        (found,), _ = index.retrieve(query, texts, k=num_found, show_progress=False)
        found = chance.sample([*found], len(found))
        prompt = documents.prompt(found, function.question)
        engine.generate(prompt, max_new_tokens=1, do_sample=False)  # encodes documents that were not found before
        text = "\n".join(("Functions:", *found, function.question))
        messages = [{"role": "system", "content": INSTRUCTION}, {"role": "user", "content": text}]
        plain.append(engine.generate(messages, max_new_tokens=_MAX_NEW_TOKENS, do_sample=False))
        for repair, answers in cached.items():
            answers.append(engine.generate(prompt, max_new_tokens=_MAX_NEW_TOKENS, do_sample=False, repair=repair))
    ways = {_PLAIN: plain, **{f'prompt cache, repair="{repair}"': answers for repair, answers in cached.items()}}
    title = f'{num_documents} documents with context="{context}", {num_found} of them in each prompt, in random order'
    return _report(ways, asked, title)


def _report(ways: dict[str, list[Completion]], asked: Sequence[Function], title: str) -> BenchReport:
    first = [answer.text for answer in ways[_PLAIN]]
    cells, rows = [], []
    for way, answers in ways.items():
        right = sum(_is_right(answer.text, function) for answer, function in zip(answers, asked, strict=True))
        same = sum(answer.text == text for answer, text in zip(answers, first, strict=True))
        seconds = [answer.timing.ttft_s for answer in answers]
        new = median(answer.usage.num_new_tokens for answer in answers)
        ttft = f"{1e3 * median(seconds):.1f}"
        cells.append((way, f"{right} of {len(asked)}", f"{same} of {len(asked)}", f"{new:.0f}", ttft))
        rows.append({"way": way, "right": right, "same": same, "questions": len(asked), "seconds": seconds})
    columns = ("way", "right", "as ordinary prefill", "new tokens", "TTFT, ms")
    return BenchReport(name="retrieval", title=title, columns=columns, cells=tuple(cells), rows=tuple(rows))


def _is_right(text: str, function: Function) -> bool:
    """Whether an answer has the name of a function, with or without that of its module."""
    return re.search(rf"(?<!\w){re.escape(function.name.rpartition('.')[2])}(?!\w)", text) is not None


def _functions() -> Iterator[Function]:
    """Yield functions whose last name and first sentence no other one has."""
    found: dict[str, Function] = {}
    sentences: set[str] = set()
    for module, name, text in _docstrings():
        words = text.split()
        sentence = re.split(r"(?<=[.!?])\s", " ".join(words))[0]
        is_clear = (
            len(sentence.split()) > 4 and "->" not in sentence and not re.search(rf"\b{re.escape(name)}\b", sentence)
        )
        if is_clear and name not in found and sentence not in sentences:
            sentences.add(sentence)
            whole = f"Function {module}.{name}: {' '.join(words[:_MOST_WORDS])}"
            found[name] = Function(f"{module}.{name}", whole, f"Which function does this: {sentence}")
    yield from found.values()


def _docstrings() -> list[tuple[str, str, str]]:
    """Return the module, the name and the docstring of each function and class of the standard library."""
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for module in sorted(each for each in sys.stdlib_module_names - _SKIPPED if not each.startswith("_")):
            with suppress(ImportError):
                members = sorted(vars(import_module(module)).items())
                public = ((name, each) for name, each in members if callable(each) and not name.startswith("_"))
                found += [(module, name, inspect.getdoc(each) or "") for name, each in public]
    return found
