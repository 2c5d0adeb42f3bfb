"""Testing schemas: their examples, the laws that need no model, and on request those of cached answers.

Comes in: file names. Goes out: a `Tested` for each. This file prints nothing, and knows no particular law: they are
those of `promptcache.testing`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path
from tempfile import gettempdir
from typing import TYPE_CHECKING

from promptcache.cli.console import Progress, show_loading
from promptcache.cli.exits import EnvironmentMissing, UsageMistake
from promptcache.cli.files import checked_schema, read
from promptcache.cli.model_folder import DEMO, declared_positions
from promptcache.cli.report import Kind
from promptcache.cli.schema_tests_text import Result, ResultKind, Tested
from promptcache.cli.sources import Sources
from promptcache.diagnostics import LanguageError
from promptcache.language.examples import example_prompt
from promptcache.layout import check_length
from promptcache.tokenizer import HubTokenizer, model_folder

if TYPE_CHECKING:
    from promptcache.engine import Engine
    from promptcache.testing.subject import PromptCase, Subject

_MODEL_PROMPTS = 6  # a schema's own examples first; each costs several forward passes


def test_files(
    names: Sequence[str], sources: Sources, progress: Progress, *, num_prompts: int, model: str | None
) -> list[Tested]:
    """Test schemas, each once.

    Args:
        names: Files, "-" for standard input.
        sources: Where the documents are added.
        progress: Called before each test with its name, and how many of the file's laws are done.
        num_prompts: Drawn for each law; 0 leaves the laws out.
        model: Also check cached answers of this model; None loads none, and counts tokens as the demo model does.

    Raises:
        UsageMistake: one is a prompt.
        ModelNotFound: there is no such model.
        EnvironmentMissing: Hypothesis, which draws the prompts, is not installed.
    """
    folder = model_folder(model or DEMO)
    if num_prompts or model is not None:
        _find_hypothesis()
    engine = None
    if model is not None:
        show_loading(progress, model)
        engine = _load_engine(model)
    return [_test(name, sources, folder, num_prompts, engine, progress) for name in dict.fromkeys(names)]


def _test(
    name: str, sources: Sources, folder: Path, num_prompts: int, engine: Engine | None, progress: Progress
) -> Tested:
    from promptcache.testing.subject import Subject

    try:
        document = read(name, sources)
        if document.kind is Kind.PROMPT:
            raise UsageMistake(f"{name} is a prompt; test takes schemas")
        schema = checked_schema(document)
        subject = Subject(schema, HubTokenizer.from_folder(folder))
        check_length(subject.layout, declared_positions(folder) or subject.layout.stop + 1)
    except LanguageError as error:
        return Tested(file=name, diagnostics=error.diagnostics)
    results = [*_examples(subject)]
    if num_prompts:
        results += _laws(subject, num_prompts, partial(progress, name))
    if engine is not None:
        results += _model_laws(subject, engine, partial(progress, name))
    return Tested(file=document.name, schema=schema.name, results=tuple(results))


def _examples(subject: Subject) -> Iterator[Result]:
    """Plan each example that is said to be valid; whether it is, and what it contains, was checked with the schema."""
    from promptcache.testing.running import check_example, tested_examples

    for name, example in tested_examples(subject):
        failure = None
        try:
            check_example(subject, example)
        except LanguageError as error:
            failure = "\n".join(f"{fault.code} {fault.message}" for fault in error.diagnostics)
        yield Result(kind=ResultKind.EXAMPLE, name=name, line=example.span.line, failure=failure)


def _laws(subject: Subject, num_prompts: int, progress: Callable[[int, int], None]) -> Iterator[Result]:
    from promptcache.testing.laws import LAWS
    from promptcache.testing.running import check_law

    line = subject.schema.source.span.line
    for done, law in enumerate(LAWS):
        progress(done, len(LAWS))
        failure = _failure(partial(check_law, law, subject, max_examples=num_prompts))
        yield Result(kind=ResultKind.LAW, name=law.name, line=line, failure=failure)


def _model_laws(subject: Subject, engine: Engine, progress: Callable[[int, int], None]) -> Iterator[Result]:
    from promptcache.testing.engine_laws import ENGINE_LAWS
    from promptcache.testing.histories import check_histories
    from promptcache.testing.service import served_by

    line = subject.schema.source.span.line
    service = served_by(engine, subject.schema)
    cases = list(islice(_cases(subject), _MODEL_PROMPTS))
    total = len(ENGINE_LAWS) + 1
    for done, law in enumerate(ENGINE_LAWS):
        progress(done, total)
        failures = (_failure(partial(law.check, service, case.selection), case) for case in cases)
        failure = next((each for each in failures if each is not None), None)
        yield Result(kind=ResultKind.MODEL_LAW, name=law.name, line=line, failure=failure)
    progress(total - 1, total)
    failure = _failure(partial(check_histories, service, [case.selection for case in cases]))
    yield Result(kind=ResultKind.MODEL_LAW, name="histories change nothing", line=line, failure=failure)


def _cases(subject: Subject) -> Iterator[PromptCase]:
    """Yield the valid examples, then prompts that cover pairs of choices."""
    from promptcache.testing.cover import covering

    for example in subject.schema.examples:
        if example.valid:
            with suppress(LanguageError):  # one that cannot be planned is a result of its own
                yield subject.case(example_prompt(example).to_xml())
    yield from covering(subject.schema, tokenizer=subject.tokenizer)


def _failure(check: Callable[[], None], case: PromptCase | None = None) -> str | None:
    """Return why a law does not hold, with the prompt that shows it, or None if it holds."""
    from hypothesis.errors import HypothesisException

    from promptcache.testing.laws import BrokenLaw

    try:
        check()
    except HypothesisException as error:
        return f"no prompts could be drawn: {type(error).__name__}: {str(error).partition(chr(10))[0]}"
    except ValueError as error:  # a slot takes nothing
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
    prompts = (
        [case.report] if case else [note for note in getattr(broken, "__notes__", ()) if note.startswith("prompt: ")]
    )
    return "\n".join((str(broken), *prompts))


def _find_hypothesis() -> None:
    from importlib.util import find_spec

    if find_spec("hypothesis") is None:
        mend = "pip install 'promptcache[testing]', or --prompts 0 without --model to check the examples only"
        raise EnvironmentMissing(f"laws need Hypothesis: {mend}")
    # its tables are kept with other caches; by default it makes a folder wherever the command is run
    if "hypothesis" in sys.modules:
        return
    os.environ.setdefault("HYPOTHESIS_STORAGE_DIRECTORY", str(_caches() / "promptcache" / "hypothesis"))


def _caches() -> Path:
    """Return where files lie that can be made again; for a user without a home, where passing ones do."""
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:
        return Path(gettempdir())


def _load_engine(model: str) -> Engine:
    from promptcache.engine import Engine

    return Engine.from_pretrained(model)
