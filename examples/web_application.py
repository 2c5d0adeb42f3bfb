"""A web application of your own: FastAPI, answers that stream, mistakes as 400, and an orderly end.

`python examples/web_application.py` starts it, asks it as ten clients at once, and ends it while an answer is read. To
run it by itself: `uvicorn --app-dir examples --factory web_application:application`. Needs `pip install
'promptcache[server]' httpx`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal

import httpx
import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel, Field

from promptcache import ContextLengthExceeded, Engine, Prompt, PromptError

SCHEMA = Path(__file__).parents[1] / "schemas" / "travel.xml"


class Question(BaseModel):
    """A question about a city. A city that the schema does not have is found by `astream`."""

    city: str
    question: str = Field(max_length=500)
    duration: str = "three days"
    mode: Literal["whole", "stream"] = "stream"

    @property
    def prompt(self) -> Prompt:
        """Arguments and texts are data: markup in them is text for the model."""
        return Prompt("travel").use("trip-plan", duration=self.duration).use(self.city).user(self.question)


def application() -> FastAPI:
    """Return the application. Its engine exists from its start to its end."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        with Engine.from_pretrained("demo") as engine:
            engine.add_schema(SCHEMA)
            engine.warm()
            app.state.engine = engine
            yield  # uvicorn waits for running answers before it goes on here

    app = FastAPI(lifespan=lifespan)

    @app.exception_handler(PromptError)
    @app.exception_handler(ContextLengthExceeded)
    def refuse(_: Request, error: Exception) -> JSONResponse:
        return JSONResponse({"error": str(error)}, status_code=400)

    @app.post("/answers", response_model=None)
    async def answer(asked: Question) -> StreamingResponse | dict[str, object]:
        engine: Engine = app.state.engine
        if asked.mode == "whole":
            made = await engine.agenerate(asked.prompt, do_sample=False, max_new_tokens=32)
            return {"text": made.text, "reused": made.usage.num_reused_tokens}
        pieces = engine.astream(asked.prompt, do_sample=False, max_new_tokens=32)  # a mistake is raised here
        return StreamingResponse(pieces, media_type="text/plain")  # a client that leaves cancels its request

    return app


async def ask(client: httpx.AsyncClient, **question: str) -> None:
    """Ask a question, and print the answer or the error."""
    response = await client.post("/answers", json=question)
    print(response.status_code, response.text)


async def main() -> None:
    """Serve ten clients at once, one with a mistake, and end while another one reads."""
    server = uvicorn.Server(uvicorn.Config(application, factory=True, port=0, log_level="warning"))
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
        cities = ["miami", "paris", "tokyo"] * 3
        asked = [ask(client, city=each, question=f"What is the airport of {each.title()}?") for each in cities]
        await asyncio.gather(*asked, ask(client, city="maimi", question="What is the best dish?"))
        await ask(client, city="miami", question="What is the best dish of Miami?", mode="whole")

        last = {"city": "paris", "question": "What is the best dish of Paris?"}
        async with client.stream("POST", "/answers", json=last) as response:
            server.should_exit = True  # as on SIGTERM
            print("ending:", "".join([piece async for piece in response.aiter_text()]))
    await serving


if __name__ == "__main__":
    asyncio.run(main())
