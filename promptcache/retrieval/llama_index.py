"""For LlamaIndex: a query engine over a retriever. Needs the package `llama-index-core`."""

from __future__ import annotations

import asyncio

from llama_index.core.base.response.schema import Response
from llama_index.core.query_engine import CustomQueryEngine
from llama_index.core.retrievers import BaseRetriever
from llama_index.core.schema import NodeWithScore

from promptcache.retrieval import Documents


class ModuleQueryEngine(CustomQueryEngine):
    """Answers from the nodes of a retriever: `ModuleQueryEngine(retriever=…, documents=…).query("…")`.

    Attributes:
        retriever: Any retriever of LlamaIndex.
        documents: Where its nodes become members.
    """

    retriever: BaseRetriever
    documents: Documents

    def custom_query(self, query_str: str) -> Response:
        """Return the answer with its nodes."""
        return self._answer(self.retriever.retrieve(query_str), query_str)

    async def acustom_query(self, query_str: str) -> Response:
        """Return the answer with its nodes; the model runs in another thread."""
        return await asyncio.to_thread(self._answer, await self.retriever.aretrieve(query_str), query_str)

    def _answer(self, nodes: list[NodeWithScore], question: str) -> Response:
        answer = self.documents.answer([each.get_content() for each in nodes], question)
        return Response(response=answer.text, source_nodes=nodes)
