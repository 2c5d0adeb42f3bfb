"""Retrievers of LangChain and LlamaIndex: their documents become members of a collection, and the answer comes from them."""

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnablePassthrough
from llama_index.core.retrievers import BaseRetriever as LlamaRetriever
from llama_index.core.schema import NodeWithScore, TextNode

from promptcache import Engine
from promptcache.retrieval import Documents
from promptcache.retrieval.langchain import answer_from
from promptcache.retrieval.llama_index import ModuleQueryEngine

pytestmark = pytest.mark.filterwarnings("ignore")  # those of the frameworks

SCHEMA = Path(__file__).parents[2] / "schemas" / "handbook.xml"
NEW = "The keeper of the aviary is Sol Arden. The colour of the aviary is blue."
QUESTION, ANSWER = "What is the keeper of the aviary?", "The keeper of the aviary is Sol Arden."


@pytest.fixture
def documents() -> Documents:
    """The notes of the handbook, which do not have the new one yet."""
    engine = Engine.from_pretrained("demo")
    engine.add_schema(SCHEMA)
    return Documents(engine, "handbook", "notes", do_sample=False, max_new_tokens=24)


class Found(BaseRetriever):
    """Finds the same documents for each question."""

    def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
        return [Document(NEW), Document("The bell of the chapel is old."), Document(NEW)]


class FoundNodes(LlamaRetriever):
    """Finds the same nodes for each question."""

    def _retrieve(self, query_bundle: Any) -> list[NodeWithScore]:
        return [NodeWithScore(node=TextNode(text=NEW), score=1.0)]


def test_a_chain_of_langchain_answers_from_documents(documents: Documents) -> None:
    """`answer_from` takes what a retriever finds: invoke, stream, batch and async."""
    chain = {"context": Found(), "input": RunnablePassthrough()} | answer_from(documents)

    assert chain.invoke(QUESTION) == ANSWER
    pieces = [*chain.stream(QUESTION)]
    assert ("".join(pieces), len(pieces) > 1) == (ANSWER, True)
    assert chain.batch([QUESTION] * 2) == [ANSWER] * 2
    assert asyncio.run(chain.ainvoke(QUESTION)) == ANSWER


def test_the_examples_of_the_guide_run(capsys: pytest.CaptureFixture[str], documents: Documents) -> None:
    """The blocks of docs/retrieval.md for frameworks run."""
    page = (SCHEMA.parents[1] / "docs" / "retrieval.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```py\n(.*?)```", page, re.DOTALL)

    for block in blocks:
        exec(block, {"retriever": Found(), "llama_retriever": FoundNodes(), "documents": documents})

    assert (len(blocks), capsys.readouterr().out.count("is")) == (2, 2)


def test_a_query_engine_of_llama_index_answers_from_nodes(documents: Documents) -> None:
    """`ModuleQueryEngine` answers, with its nodes."""
    engine = ModuleQueryEngine(retriever=FoundNodes(), documents=documents)

    response = engine.query(QUESTION)
    later = asyncio.run(engine.aquery(QUESTION))

    assert (str(response), str(later)) == (ANSWER, ANSWER)
    assert [each.get_content() for each in response.source_nodes] == [NEW]
