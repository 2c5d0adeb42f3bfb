"""`promptcache test`: check the examples of schemas, laws over drawn prompts, and with --model laws of cached answers.

The laws are those of `promptcache.testing`, which draws prompts with Hypothesis.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import partial
from itertools import islice
from pathlib import Path
from tempfile import gettempdir
from typing import TYPE_CHECKING, Any

import click

from promptcache.cli.console import ShowProgress, print_diagnostics, progress, show_loading
from promptcache.cli.exits import EnvironmentMissing, UsageMistake, findings_code
from promptcache.cli.files import DocumentKind, checked_schema, read
from promptcache.cli.options import Output, context_option, model_option, schemas_argument, with_json
from promptcache.cli.output import write_text
from promptcache.cli.request import TokenLimits
from promptcache.cli.sources import Sources
from promptcache.diagnostics import Diagnostic, LanguageError, as_data, counted
from promptcache.language import example_prompt

if TYPE_CHECKING:
    from promptcache.engine import Engine
    from promptcache.testing.subject import PromptCase, Subject

_MODEL_PROMPTS = 6  # the schema's examples first; each prompt costs several forward passes


class ResultKind(StrEnum):
    """Kind of a test: an example of the schema, a law over drawn prompts, or a law of cached answers."""

    EXAMPLE = "example"
    LAW = "law"
    MODEL_LAW = "model law"


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The result of one test; `failure` is None if it passed."""

    kind: ResultKind
    name: str
    line: int
    failure: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaTest:
    """The results for one schema. A schema with errors has only `diagnostics`."""

    file: str
    schema: str | None = None
    results: tuple[Result, ...] = ()
    diagnostics: tuple[Diagnostic, ...] = ()

    @property
    def failures(self) -> tuple[Result, ...]:
        """Tests that failed."""
        return tuple(result for result in self.results if result.failure is not None)

    @property
    def passed(self) -> bool:
        """Whether the schema has no errors and no test failed."""
        return not self.failures and not self.diagnostics


@click.command("test")
@schemas_argument
@click.option(
    "--prompts",
    metavar="N",
    type=click.IntRange(min=0),
    default=100,
    help="Prompts drawn for each law; 0 checks the examples only.",
)
@model_option("Also check cached answers of demo, a model's folder, or a hub id.", default=None)
@context_option
@with_json
def command(sources: Sources, schemas: tuple[str, ...], prompts: int, model: str | None) -> Output:
    """Check the examples of schemas, and laws over many prompts of each.

    SCHEMA is a schema file; - is standard input.
    """
    with progress() as show:
        found = test_files(schemas, sources, show, num_prompts=prompts, model=model)
    code = findings_code(
        (diagnostic for each in found for diagnostic in each.diagnostics),
        failed=not all(each.passed for each in found),
    )
    return Output(data=_data(found), text=partial(_print, found), code=code)


def test_files(
    names: Sequence[str], sources: Sources, show: ShowProgress, *, num_prompts: int, model: str | None
) -> list[SchemaTest]:
    """Test schemas, each once.

    Args:
        names: Schema files, "-" for standard input.
        sources: Records the documents.
        show: Called before each law.
        num_prompts: Prompts drawn for each law; 0 skips the laws.
        model: Also check cached answers of this model. Without it, tokens are counted with the demo model's tokenizer.

    Raises:
        UsageMistake: A file is a prompt.
        ModelNotFound: There is no such model.
        EnvironmentMissing: Hypothesis is not installed.
    """
    limits = TokenLimits.of(model or "demo")
    if num_prompts or model is not None:
        find_hypothesis("laws need Hypothesis", "--prompts 0 without --model to check the examples only")
    engine = None
    if model is not None:
        show_loading(show, model)
        from promptcache.engine import Engine

        engine = Engine.from_pretrained(model)
    return [_test(name, sources, limits, num_prompts, engine, show) for name in dict.fromkeys(names)]


def _test(
    name: str, sources: Sources, limits: TokenLimits, num_prompts: int, engine: Engine | None, show: ShowProgress
) -> SchemaTest:
    from promptcache.testing.subject import Subject

    try:
        document = read(name, sources)
        if document.kind is DocumentKind.PROMPT:
            raise UsageMistake(f"{name} is a prompt; test takes schemas")
        schema = checked_schema(document)
        subject = Subject(schema, limits.tokenizer)
        limits.check(subject.layout, subject.states)
    except LanguageError as error:
        return SchemaTest(file=name, diagnostics=error.diagnostics)
    results = [*_examples(subject)]
    if num_prompts:
        results += _laws(subject, num_prompts, partial(show, name))
    if engine is not None:
        results += _model_laws(subject, engine, partial(show, name))
    return SchemaTest(file=document.name, schema=schema.name, results=tuple(results))


def _examples(subject: Subject) -> Iterator[Result]:
    """Plan each valid example. The check of the schema has tested whether examples are valid."""
    from promptcache.testing.running import check_example, tested_examples

    for name, example in tested_examples(subject):
        failure = None
        try:
            check_example(subject, example)
        except LanguageError as error:
            failure = "\n".join(f"{fault.code} {fault.message}" for fault in error.diagnostics)
        yield Result(kind=ResultKind.EXAMPLE, name=name, line=example.span.line, failure=failure)


def _laws(subject: Subject, num_prompts: int, show: Callable[[int, int], None]) -> Iterator[Result]:
    from promptcache.testing.laws import LAWS
    from promptcache.testing.running import check_law

    line = subject.schema.source.span.line
    for done, law in enumerate(LAWS):
        show(done, len(LAWS))
        failure = _failure(partial(check_law, law, subject, max_examples=num_prompts))
        yield Result(kind=ResultKind.LAW, name=law.name, line=line, failure=failure)


def _model_laws(subject: Subject, engine: Engine, show: Callable[[int, int], None]) -> Iterator[Result]:
    from promptcache.testing.engine_laws import ENGINE_LAWS
    from promptcache.testing.histories import check_histories
    from promptcache.testing.service import served_by

    line = subject.schema.source.span.line
    service = served_by(engine, subject.schema)
    cases = list(islice(_cases(subject), _MODEL_PROMPTS))
    total = len(ENGINE_LAWS) + 1
    for done, law in enumerate(ENGINE_LAWS):
        show(done, total)
        failures = (_failure(partial(law.check, service, case.selection), case) for case in cases)
        failure = next((each for each in failures if each is not None), None)
        yield Result(kind=ResultKind.MODEL_LAW, name=law.name, line=line, failure=failure)
    show(total - 1, total)
    failure = _failure(partial(check_histories, service, [case.selection for case in cases]))
    yield Result(kind=ResultKind.MODEL_LAW, name="histories change nothing", line=line, failure=failure)


def _cases(subject: Subject) -> Iterator[PromptCase]:
    """Yield the valid examples, then prompts that cover pairs of choices."""
    from promptcache.testing.cover import covering

    for example in subject.schema.examples:
        if example.valid:
            with suppress(LanguageError):  # `_examples` reports an example that cannot be planned
                yield subject.case(example_prompt(example).to_xml())
    yield from covering(subject.schema, tokenizer=subject.tokenizer)


def _failure(check: Callable[[], None], case: PromptCase | None = None) -> str | None:
    """Return why a law fails, with the prompt that breaks it, or None if it holds."""
    from hypothesis.errors import HypothesisException

    from promptcache.testing.laws import BrokenLaw

    try:
        check()
    except HypothesisException as error:
        return f"no prompts could be drawn: {type(error).__name__}: {str(error).partition(chr(10))[0]}"
    except ValueError as error:  # a slot accepts nothing
        return f"no prompts could be drawn: {error}"
    except BrokenLaw as error:
        broken = error
    except ExceptionGroup as group:  # Hypothesis found several ways to break the law
        found, _ = group.split(BrokenLaw)
        if found is None:
            raise
        broken = next(each for each in found.exceptions if isinstance(each, BrokenLaw))
    else:
        return None
    notes = getattr(broken, "__notes__", ())
    prompts = [case.report] if case else [note for note in notes if note.startswith("prompt: ")]
    return "\n".join((str(broken), *prompts))


def find_hypothesis(problem: str, alternative: str) -> None:
    """Check that Hypothesis is installed, and keep its files out of the working directory.

    Raises:
        EnvironmentMissing: It is not; the message has the problem and what to do instead.
    """
    from importlib.util import find_spec

    if find_spec("hypothesis") is None:
        raise EnvironmentMissing(f"{problem}: pip install 'promptcache[testing]', or {alternative}")
    if "hypothesis" not in sys.modules:
        try:
            caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        except RuntimeError:  # no home folder
            caches = Path(gettempdir())
        os.environ.setdefault("HYPOTHESIS_STORAGE_DIRECTORY", str(caches / "promptcache" / "hypothesis"))


def _data(found: Sequence[SchemaTest]) -> dict[str, Any]:
    schemas = [
        {
            "file": each.file,
            "schema": each.schema,
            "passed": each.passed,
            "tests": [asdict(result) for result in each.results],
            "diagnostics": [as_data(diagnostic) for diagnostic in each.diagnostics],
        }
        for each in found
    ]
    return {"schemas": schemas, "passed": all(each.passed for each in found)}


def _print(found: Sequence[SchemaTest]) -> None:
    """Print the failures, then one line for each schema."""
    for each in found:
        print_diagnostics(each.diagnostics)
        for result in each.failures:
            failure = "".join(f"    {line}\n" for line in (result.failure or "").splitlines())
            write_text(f"{each.file}:{result.line}: {result.kind} '{result.name}' failed\n{failure}\n")
    write_text("".join(f"{each.file}: {_summary(each)}\n" for each in found))


def _summary(each: SchemaTest) -> str:
    if each.diagnostics:
        return f"{counted(len(each.diagnostics), 'error')}, laws not checked"
    kinds = Counter(result.kind for result in each.results)
    total = ", ".join(counted(number, kind) for kind, number in kinds.items()) or "no examples"
    return f"{total}: {len(each.failures)} failed" if each.failures else f"{total}: passed"
