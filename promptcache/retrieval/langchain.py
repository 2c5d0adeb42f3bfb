"""For LangChain: the part of a retrieval chain that answers from documents. Needs the package `langchain-core`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from langchain_core.runnables import Runnable, RunnableLambda

from promptcache.retrieval import Documents


def answer_from(documents: Documents) -> Runnable[Mapping[str, Any], str]:
    """Return a runnable that answers `{"context": documents of a retriever, "input": question}`.

    It stands where `create_stuff_documents_chain` of LangChain does:

        chain = {"context": retriever, "input": RunnablePassthrough()} | answer_from(documents)
    """

    def answer(inputs: Mapping[str, Any]) -> Iterator[str]:
        yield from documents.stream([each.page_content for each in inputs["context"]], inputs["input"])

    return RunnableLambda(answer)
