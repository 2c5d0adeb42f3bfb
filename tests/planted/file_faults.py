"""Faults of included files: options, paths, rules and texts of a schema in several files.

Each fault is planted at `parse_schema`: it changes the documents, so that the correct reader gives the result of a
faulty one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
from lxml import etree

from promptcache.testing.prompt_xml import to_text
from tests.planted.registry import Plant, fault
from tests.strategies import split_files

FILES = "files are one schema"
Documents = dict[str, etree._Element]
"""Documents of a schema by path; "" is the schema itself."""


def _changing(change: Callable[[Documents], None], text: Callable[[str], str] = str) -> Plant:
    """Return a plant that changes the documents, and the texts of `src` files."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        original = split_files.parse_schema

        def parse_schema(xml: str, *, folder: Mapping[str, str] | None = None) -> object:
            files = {"": xml, **(folder or {})}
            documents = {name: etree.fromstring(each) for name, each in files.items() if not name.endswith(".txt")}
            change(documents)
            texts = {name: text(each) for name, each in files.items() if name.endswith(".txt")}
            texts |= {name: to_text(root) for name, root in documents.items()}
            return original(texts.pop(""), folder=texts or None)

        patch.setattr(split_files, "parse_schema", parse_schema)

    return plant


def _included(documents: Documents) -> list[etree._Element]:
    return [root for name, root in documents.items() if name]


def _without_options(documents: Documents) -> None:
    for root in _included(documents):
        for name in ("whitespace", "separator", "context"):
            root.attrib.pop(name, None)


def _without_rules(documents: Documents) -> None:
    for root in _included(documents):
        for rules in root.findall("rules"):
            root.remove(rules)


def _at_the_end(documents: Documents) -> None:
    for include in documents[""].findall("include"):
        documents[""].append(include)


fault("included modules take the options of their new place", law=FILES)(_changing(_without_options))
fault("rules of an included file stay behind", law=FILES)(_changing(_without_rules))
fault("included modules come last in the schema", law=FILES)(_changing(_at_the_end))
fault("texts from files lose their last newline", law=FILES)(
    _changing(lambda documents: None, text=lambda text: text.removesuffix("\n"))
)
