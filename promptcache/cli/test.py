"""`promptcache test`: the examples of schemas, every pair of choices, their authors' own tests, and with --model a law.

Prompts are made by `promptcache.testing`. The tests of `shop.xml` are in `test_shop.py` beside it; pytest runs them.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from promptcache.atomic import cache_folder
from promptcache.cli.console import print_diagnostics, progress, show_loading
from promptcache.cli.documents import DocumentKind, Sources, checked_schema, read
from promptcache.cli.exits import EnvironmentMissing, UsageMistake, findings_code
from promptcache.cli.options import Output, context_option, model_option, schemas_argument, with_json
from promptcache.cli.output import write_text
from promptcache.cli.request import TokenLimits
from promptcache.cli.settings import Value
from promptcache.diagnostics import Diagnostic, InvalidValue, LanguageError, counted, whole
from promptcache.language import Example, example_prompt
from promptcache.progress import Progress, tracked

if TYPE_CHECKING:
    from promptcache.engine import Engine
    from promptcache.testing.subject import Subject

_MODEL_PROMPTS = 20  # each prompt costs two forward passes


class ResultKind(StrEnum):
    """Kind of a test: an example, a combination of modules, a file of the author's own tests, or one with a model."""

    EXAMPLE = "example"
    COMBINATION = "combination"
    OWN = "own test file"
    ANSWER = "answer"
    LAW = "law"


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The result of one test; `failure` is None if it passed."""

    kind: ResultKind
    name: str
    line: int
    failure: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaTest:
    """The results for one schema. A schema with errors has only `diagnostics`, and has not passed.

    `num_answers_left` are the answers that are not tested, because that needs a model.
    """

    file: str
    schema: str | None = None
    passed: bool = False
    num_answers_left: int = 0
    tests: tuple[Result, ...] = ()
    diagnostics: tuple[Diagnostic, ...] = ()


@click.command("test")
@schemas_argument
@click.option(
    "--prompts",
    metavar="N",
    type=Value(whole(1), "prompts"),
    default=None,
    help=f"Random prompts for --model; default: {_MODEL_PROMPTS}.",
)
@model_option("Also test answers of this model, and its cached logits: demo, a folder, or a hub id.", default=None)
@context_option
@with_json
def command(sources: Sources, schemas: tuple[str, ...], prompts: int | None, model: str | None) -> Output:
    """Test schemas: their examples, every pair of choices, and your own tests.

    The tests of shop.xml are in test_shop.py beside it; pytest runs them.

    SCHEMA is a schema file; - is standard input.
    """
    if prompts is not None and model is None:
        raise UsageMistake("--prompts is the number of prompts for --model; give that too")
    with progress() as show:
        limits = TokenLimits.of(model or "demo")
        find_hypothesis("tests need Hypothesis", "`promptcache check` to check the documents only")
        engine = None
        if model is not None:
            show_loading(show, model)
            from promptcache.engine import Engine

            engine = Engine.from_pretrained(model)
        num_prompts = prompts or _MODEL_PROMPTS
        found = [_test(name, sources, limits, num_prompts, engine, show) for name in dict.fromkeys(schemas)]
    passed = all(each.passed for each in found)
    code = findings_code((diagnostic for each in found for diagnostic in each.diagnostics), failed=not passed)
    return Output(data={"schemas": found, "passed": passed}, text=partial(_print, found), code=code)


def _test(
    name: str, sources: Sources, limits: TokenLimits, num_prompts: int, engine: Engine | None, show: Progress
) -> SchemaTest:
    from promptcache.testing.subject import Subject

    try:
        document = read(name, sources)
        if document.kind is DocumentKind.PROMPT:
            raise UsageMistake(f"{name} is a prompt; test takes schemas")
        schema = checked_schema(document)
        subject = Subject(schema, limits.tokenizer)
        limits.check(subject.layout, subject.variants)
    except LanguageError as error:
        return SchemaTest(file=name, diagnostics=error.diagnostics)
    steps: list[Callable[[], Iterator[Result]]] = [
        partial(_examples, subject),
        partial(_combinations, subject),
        partial(_own_tests, document.path),
    ]
    if engine is not None:
        steps += [partial(_answers, subject, engine), partial(_law, subject, engine, num_prompts)]
    results = [result for step in tracked(steps, show, name, len(steps)) for result in step()]
    return SchemaTest(
        file=document.name,
        schema=schema.name,
        passed=all(each.failure is None for each in results),
        tests=tuple(results),
        num_answers_left=len([*_asked(subject)]) if engine is None else 0,
    )


def _examples(subject: Subject) -> Iterator[Result]:
    """Plan each valid example. The check of the schema has tested whether examples are valid."""
    from promptcache.testing.check import check_example, tested_examples

    for name, example in tested_examples(subject):
        failure = _failure(partial(check_example, subject, example))
        yield Result(kind=ResultKind.EXAMPLE, name=name, line=example.span.line, failure=failure)


def _combinations(subject: Subject) -> Iterator[Result]:
    """Plan few prompts that show every pair of choices."""
    from promptcache.testing.check import check_combination
    from promptcache.testing.cover import covering_combinations

    line = subject.schema.source.span.line
    for modules in covering_combinations(subject):
        failure = _failure(partial(check_combination, subject, modules))
        name = " ".join(sorted(modules)) or "no modules"
        yield Result(kind=ResultKind.COMBINATION, name=name, line=line, failure=failure)


def _failure(check: Callable[[], None]) -> str | None:
    """Return why a document cannot be planned, or None."""
    try:
        check()
    except LanguageError as error:
        return "\n".join(f"{fault.code} {fault.message}" for fault in error.diagnostics)
    except InvalidValue as error:
        return str(error)
    return None


def _own_tests(schema: Path | None) -> Iterator[Result]:
    """Run the tests beside a schema, if there are any."""
    if schema is None:
        return
    file = schema.with_name(f"test_{schema.name.removesuffix('.j2').removesuffix('.xml')}.py")
    if file.is_file():
        words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(file)]
        unchanged = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(words, env=unchanged, capture_output=True, text=True, check=False)
        failure = f"{done.stdout}{done.stderr}".strip() if done.returncode else None
        yield Result(kind=ResultKind.OWN, name=str(file), line=1, failure=failure)


def _asked(subject: Subject) -> Iterator[tuple[str, Example, str]]:
    """Yield the examples that expect a text in the answer of a model, each with its name and the text."""
    from promptcache.testing.check import tested_examples

    for name, example in tested_examples(subject):
        if example.expect is not None:
            yield name, example, example.expect


def _answers(subject: Subject, engine: Engine) -> Iterator[Result]:
    """Generate the answers of which examples expect a text."""
    engine.add_schema(subject.schema)
    for name, example, expected in _asked(subject):
        text = engine.generate(example_prompt(example), do_sample=False).text
        failure = None if expected in text else f"expect={expected!r} is not in the answer {text!r}"
        yield Result(kind=ResultKind.ANSWER, name=name, line=example.span.line, failure=failure)


def _law(subject: Subject, engine: Engine, num_prompts: int) -> Iterator[Result]:
    """Compare cached logits with the reference's."""
    from promptcache.testing.cached import WrongLogits, check_cached

    failure = None
    try:
        check_cached(engine, subject, max_examples=num_prompts)
    except InvalidValue as error:  # a slot accepts nothing
        failure = f"no prompts could be drawn: {error}"
    except WrongLogits as error:
        prompts = [note for note in getattr(error, "__notes__", ()) if note.startswith("prompt: ")]
        failure = "\n".join((str(error), *prompts))
    line = subject.schema.source.span.line
    yield Result(kind=ResultKind.LAW, name="cached logits are the reference's", line=line, failure=failure)


def find_hypothesis(problem: str, alternative: str) -> None:
    """Check that Hypothesis is installed, and keep its files out of the working directory.

    If it is not, the message has the problem and what to do instead.
    """
    from importlib.util import find_spec

    if find_spec("hypothesis") is None:
        raise EnvironmentMissing(f"{problem}: pip install 'promptcache[testing]', or {alternative}")
    if "hypothesis" not in sys.modules:
        os.environ.setdefault("HYPOTHESIS_STORAGE_DIRECTORY", str(cache_folder() / "hypothesis"))


def _print(found: Sequence[SchemaTest]) -> None:
    """Print the failures, then one line for each schema."""
    lines = []
    for each in found:
        print_diagnostics(each.diagnostics)
        failed = [result for result in each.tests if result.failure is not None]
        for result in failed:
            failure = "".join(f"    {line}\n" for line in (result.failure or "").splitlines())
            write_text(f"{each.file}:{result.line}: {result.kind} '{result.name}' failed\n{failure}\n")
        kinds = Counter(result.kind for result in each.tests)
        total = ", ".join(counted(number, kind) for kind, number in kinds.items()) or "nothing to test"
        end = f"{total}: {f'{len(failed)} failed' if failed else 'passed'}"
        if each.num_answers_left:
            end += f"; {counted(each.num_answers_left, 'answer')} not tested without --model"
        if each.diagnostics:
            end = f"{counted(len(each.diagnostics), 'error')}, not tested"
        lines.append(f"{each.file}: {end}\n")
    write_text("".join(lines))
