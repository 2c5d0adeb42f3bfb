"""The pytest plugin: schemas as tests, and an engine for tests that need no download.

    pytest --promptcache=schemas/

collects every schema of a folder: one item for each of its examples and one for every pair of its choices, reported at
their own file and line. `--promptcache-context` is a file of values for those that are templates. Nothing is collected
without the option. Neither torch nor transformers is imported when pytest starts; the fixture
`promptcache_engine` loads them when a test asks for it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Generator, Iterator, Mapping
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

if TYPE_CHECKING:
    from promptcache.engine import Engine

_SUFFIXES = (".xml", ".xml.j2")
_FAILING = re.compile(r"prompt: (.*)\npositions: ", re.DOTALL)  # as `PromptCase.report` begins


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add our options."""
    group = parser.getgroup("promptcache")
    group.addoption("--promptcache", metavar="FOLDER", help="collect schemas and test them")
    group.addoption("--promptcache-context", metavar="FILE", help="JSON: the values that templates of schemas use")
    group.addoption(
        "--promptcache-model", metavar="MODEL", help='model of `promptcache_engine`: "demo", folder, hub id'
    )


def pytest_configure(config: pytest.Config) -> None:
    """Collect the named folder, too; refuse values that are unreadable or have no folder."""
    _context(config)
    folder = config.getoption("--promptcache")
    if folder and find_spec("hypothesis") is None:
        raise pytest.UsageError("--promptcache needs Hypothesis: pip install 'promptcache[testing]'")
    if not folder and config.getoption("--promptcache-context") is not None:
        raise pytest.UsageError("--promptcache-context is for templates in --promptcache=FOLDER; give that too")
    named = (config.invocation_params.dir / argument.partition("::")[0] for argument in config.args)
    if folder and not any(path.resolve().is_relative_to(Path(folder).resolve()) for path in named):
        config.args.append(folder)


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Collect a schema below the named folder."""
    folder = parent.config.getoption("--promptcache")
    if not folder or not file_path.name.endswith(_SUFFIXES) or not file_path.is_relative_to(Path(folder).resolve()):
        return None
    from promptcache.diagnostics import suggest
    from promptcache.language import root_tag

    data = file_path.read_bytes()
    if file_path.suffix == ".xml":
        root = root_tag(data)
        is_schema = root is not None and suggest(root.name, ("schema", "prompt")) == "schema"
    else:
        is_schema = b"<schema" in data  # statements of the template may come first
    if not is_schema:
        return None
    return SchemaFile.from_parent(parent, path=file_path)


@pytest.fixture(scope="session")
def promptcache_engine(request: pytest.FixtureRequest) -> Engine:
    """An engine: a tiny random model over bytes, or the model of `--promptcache-model`."""
    from promptcache.engine import Engine
    from promptcache.testing.byte_tokenizer import ByteTokenizer
    from promptcache.testing.tiny_model import tiny_model

    model = request.config.getoption("--promptcache-model")
    return Engine.from_pretrained(model) if model else Engine(tiny_model(), ByteTokenizer())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Write the prompt of a property test that failed to a file, and report it with the statistics of Hypothesis."""
    report = yield
    error = None if call.excinfo is None else call.excinfo.value
    if failing := next(filter(None, map(_FAILING.match, getattr(error, "__notes__", ()))), None):
        path = item.config.rootpath / ".promptcache" / f"{re.sub(r'[^-.0-9A-Z_a-z]+', '-', item.nodeid)}.xml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"{failing[1]}\n", encoding="utf-8")
        told = (f"kept in {_shown(path)}", *getattr(item, "hypothesis_statistics", ()))
        report.sections.append(("failing prompt", "\n".join(told)))
    return report


class SchemaFile(pytest.File):
    """A schema document: an item for every example and one for the pairs, or one that fails with its diagnostics."""

    def collect(self) -> Iterator[pytest.Item]:
        from promptcache.diagnostics import SchemaError
        from promptcache.language import read_schema_file
        from promptcache.testing.check import check_combinations, check_example, tested_examples
        from promptcache.testing.subject import Subject

        context = _context(self.config)
        try:
            subject = Subject(read_schema_file(_shown(self.path), context).document)
        except SchemaError as error:
            if context is None and any(each.code == "PC603" for each in error.diagnostics):
                error.add_note("--promptcache-context=FILE gives templates their values")
            line = error.diagnostics[0].span.line
            yield SchemaItem.from_parent(self, name="check", line=line, run=partial(_fail, error))
            return
        for name, example in tested_examples(subject):
            run = partial(check_example, subject, example)
            yield SchemaItem.from_parent(self, name=f"example {name}", line=example.span.line, run=run)
        line = subject.schema.source.span.line
        run = partial(check_combinations, subject)
        yield SchemaItem.from_parent(self, name="every pair of choices", line=line, run=run)


class SchemaItem(pytest.Item):
    """A test of a schema, at one of its lines."""

    def __init__(self, *, line: int, run: Callable[[], None], **fields: Any) -> None:
        super().__init__(**fields)
        self._line, self._run = line, run

    def runtest(self) -> None:
        """Run the test."""
        self._run()

    def reportinfo(self) -> tuple[Path, int, str]:
        """The schema's file and the line in it, as pytest counts."""
        stem = self.path.name.removesuffix(".j2").removesuffix(".xml")
        return self.path, self._line - 1, f"{stem}: {self.name}"

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], *rest: Any) -> Any:
        """Every fault with its place, and a traceback of any other error."""
        from promptcache.diagnostics import InvalidValue, LanguageError

        if not isinstance(excinfo.value, LanguageError | InvalidValue):
            return super().repr_failure(excinfo, *rest)
        return "\n".join((str(excinfo.value), *getattr(excinfo.value, "__notes__", ())))


def _fail(error: Exception) -> NoReturn:
    raise error


def _shown(path: Path) -> Path:
    """Return a path relative to the working directory, if it is below."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


def _context(config: pytest.Config) -> Mapping[str, object] | None:
    """Return the values for templates."""
    file = config.getoption("--promptcache-context")
    if file is None:
        return None
    try:
        values = json.loads(Path(file).read_bytes())
    except (OSError, ValueError, RecursionError) as fault:
        raise pytest.UsageError(f"--promptcache-context {file}: {fault}") from None
    if not isinstance(values, dict):
        raise pytest.UsageError(f'--promptcache-context {file}: an object is expected, as {{"name": "value"}}')
    return values
