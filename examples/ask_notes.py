"""Retrieval: find the notes for a question with BM25, and answer from them. Needs `pip install bm25s`."""

from __future__ import annotations

from pathlib import Path

import bm25s

from promptcache import Engine
from promptcache.retrieval import Documents

SCHEMA = Path(__file__).parents[1] / "schemas" / "handbook.xml"


def main() -> None:
    """Answer three questions from twenty notes, five at a time."""
    engine = Engine.from_pretrained("demo")
    engine.add_schema(SCHEMA)
    notes = [*engine.members("handbook", "notes").values()]
    index = bm25s.BM25()
    index.index(bm25s.tokenize(notes, show_progress=False), show_progress=False)
    documents = Documents(engine, "handbook", "notes", do_sample=False)

    for question in (
        "What is the cook of the breakfast?",
        "What is the fare of the shuttle?",
        "What is the name of the bar?",
    ):
        (found,), _ = index.retrieve(bm25s.tokenize(question, show_progress=False), notes, k=5, show_progress=False)
        answer = documents.answer(found, question)
        print(f"{question} {answer.text} ({answer.usage.num_reused_tokens} tokens reused)")


if __name__ == "__main__":
    main()
