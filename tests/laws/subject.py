"""A schema under test as the laws need it: with its document, the files that it names, and its grammars."""

from functools import cache, cached_property
from pathlib import Path

from lxml import etree

from promptcache.language import (
    Files,
    Module,
    Schema,
    Text,
    check_schema,
    is_markup,
    is_template,
    parse_schema,
    print_schema,
    prompt_grammar,
    walk,
)
from promptcache.testing import Subject as PlainSubject
from promptcache.testing.subject import SchemaSource
from promptcache.tokenizer import Tokenizer

_GRAMMAR = Path(__file__).parents[2] / "grammar" / "promptcache.rng"


@cache
def published_grammar() -> etree.RelaxNG:
    return etree.RelaxNG(etree.parse(_GRAMMAR))


class Subject(PlainSubject):
    """A schema under one tokenizer; XML text takes the files that it names from `folder`."""

    def __init__(
        self, source: SchemaSource, tokenizer: Tokenizer | None = None, *, folder: Files | None = None
    ) -> None:
        self._xml = source if isinstance(source, str) and is_markup(source) else None
        self._files = folder
        read = source if self._xml is None else check_schema(parse_schema(self._xml, folder=folder))
        super().__init__(read, tokenizer)

    @property
    def folder(self) -> Files | None:
        """The files that the schema names: in the folder of its own file, or in memory."""
        file = Path(self.schema.source.span.source)
        if self._files is None and file.is_file():
            return file.parent
        return self._files or _texts(self.schema.source) or None

    @cached_property
    def document(self) -> str:
        """The schema as it was written; printed, if it was built in Python or contains templates."""
        file = Path(self.schema.source.span.source)
        if self._xml is not None:
            return self._xml
        if file.is_file() and not any(is_template(item.span.source) for _, item in walk(self.schema.source.children)):
            return file.read_text(encoding="utf-8")
        return print_schema(self.schema.source)

    @cached_property
    def grammar(self) -> etree.RelaxNG:
        return etree.RelaxNG(etree.fromstring(prompt_grammar(self.schema)))


def _texts(schema: Schema) -> dict[str, str]:
    """Return the texts that a schema took from files; a byte order mark is not part of them."""
    modules = (item for _, item in walk(schema.children) if isinstance(item, Module) and item.src is not None)
    taken = (
        (module.src, child.text)
        for module in modules
        for child in module.children
        if isinstance(child, Text) and child.exact
    )
    return {str(name): f"\ufeff{text}" if text.startswith("\ufeff") else text for name, text in taken}
