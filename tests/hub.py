"""A model hub of one's own: a cache folder as huggingface_hub keeps it, and a server that answers like the hub."""

import json
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlparse

import pytest

COMMIT = "0123456789abcdef0123456789abcdef01234567"
NOWHERE = "http://127.0.0.1:9"
"""An address where nothing answers, as on a machine without network."""


def cache_model(cache: Path, name: str, folder: Path) -> Path:
    """Put the files of a model's folder into a hub cache, as a download does; return the snapshot."""
    place = cache / f"models--{name.replace('/', '--')}"
    (place / "refs").mkdir(parents=True)
    (place / "refs" / "main").write_text(COMMIT)
    return Path(shutil.copytree(folder, place / "snapshots" / COMMIT))


def without_network(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    """Let the hub be out of reach in this process, and its cache lie in a folder."""
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", NOWHERE)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache))


@dataclass
class FakeHub:
    """A server that has one model."""

    url: str
    requests: list[str] = field(default_factory=list)  # method and path of each request so far

    def environment(self, home: Path) -> dict[str, str]:
        """Return the environment variables of a process that uses this hub."""
        return {"HF_ENDPOINT": self.url, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1"}


@contextmanager
def fake_hub(name: str, folder: Path) -> Iterator[FakeHub]:
    """Serve the files of a folder as the model `name`."""
    hub = FakeHub("")
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Handler, hub, name, folder))
    hub.url = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    def __init__(self, hub: FakeHub, name: str, folder: Path, *args: object) -> None:
        self.hub, self.name, self.folder = hub, name, folder
        super().__init__(*args)  # type: ignore[arg-type]

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def log_message(self, *_: object) -> None:
        """Print nothing."""

    def _answer(self) -> None:
        path = urlparse(self.path).path
        self.hub.requests.append(f"{self.command} {path}")
        files = {str(file.relative_to(self.folder)): file for file in sorted(self.folder.rglob("*")) if file.is_file()}
        if path in {f"/api/models/{self.name}", f"/api/models/{self.name}/revision/main"}:
            siblings = [{"rfilename": each} for each in files]
            self._send(json.dumps({"id": self.name, "sha": COMMIT, "siblings": siblings, "tags": []}).encode())
        elif path.startswith(f"/api/models/{self.name}/tree/"):
            entries = [
                {"type": "file", "path": each, "size": file.stat().st_size, "oid": each} for each, file in files.items()
            ]
            self._send(json.dumps(entries).encode())
        elif path.startswith(f"/{self.name}/resolve/") and path.split("/", 5)[-1] in files:
            self._send(files[path.split("/", 5)[-1]].read_bytes(), ETag=f'"{path.split("/", 5)[-1]}"')
        else:
            code = "EntryNotFound" if path.startswith(f"/{self.name}/") else "RepoNotFound"
            self._send(b"{}", 404, **{"X-Error-Code": code})

    def _send(self, body: bytes, status: int = 200, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), "X-Repo-Commit": COMMIT, **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)
