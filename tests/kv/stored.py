"""Small stored encodings, how to compare them, and places of a tier: a folder, and URLs whose file systems can fail."""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import BinaryIO

import fsspec
import torch
from fsspec.implementations.memory import MemoryFileSystem

from promptcache.diagnostics import TierUnavailable
from promptcache.kv import BlobTier, Codec, FileTier, KVShape, Recipe, Store, StoredEncoding
from promptcache.kv.codec import tensor_specs
from promptcache.kv.files.format import pack, unpack
from promptcache.kv.files.local import LocalFiles

HOST = torch.device("cpu")


def shape(
    dtype: torch.dtype = torch.float32, *, num_layers: int = 2, num_kv_heads: int = 1, head_dim: int = 8
) -> KVShape:
    return KVShape(num_layers=num_layers, num_kv_heads=num_kv_heads, head_dim=head_dim, dtype=dtype, device=HOST)


def recipe(name: str, num_tokens: int = 3, codec: Codec = Codec.FULL, first: int = 0) -> Recipe:
    """Return a recipe that is unique to its name, number of tokens, codec and first position."""
    return Recipe(
        fingerprint=name,
        digest=hashlib.sha256(f"{codec} {num_tokens} {first}".encode()).hexdigest(),
        num_tokens=num_tokens,
        first_position=first,
        last_position=first + num_tokens - 1,
        codec=codec,
    )


def random_stored(made_of: Recipe, kv: KVShape, facts: dict[str, str] | None = None, seed: int = 0) -> StoredEncoding:
    """Return an encoding whose tensors hold random bits, signalling NaNs included."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {
        name: torch.randint(0, 256, (spec.dtype.itemsize * torch.Size(spec.shape).numel(),), generator=generator)
        .to(torch.uint8)
        .view(spec.dtype)
        .view(spec.shape)
        for name, spec in tensor_specs(made_of.codec, kv, made_of.num_tokens).items()
    }
    return StoredEncoding(recipe=made_of, shape=kv, tensors=tensors, facts=facts or {})


def small(name: str = "small", num_tokens: int = 3, seed: int = 0) -> StoredEncoding:
    return random_stored(recipe(name, num_tokens), shape(), seed=seed)


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes()


def content(stored: StoredEncoding) -> tuple[object, ...]:
    """Return the content of a stored encoding. Two encodings are the same bit for bit if this is equal."""
    tensors = {name: (each.dtype, tuple(each.shape), bits(each)) for name, each in stored.tensors.items()}
    return stored.recipe, stored.recipe.key, stored.shape, tensors, dict(stored.facts)


def file_bytes(stored: StoredEncoding) -> int:
    return len(pack(stored))


def write(tier: BlobTier, stored: StoredEncoding) -> bool:
    """Write an encoding to a tier, as a store does; return whether the tier has it now."""
    tier.write(stored.recipe.key, pack(stored))
    return stored.recipe.key in set(tier.keys())


def read(tier: BlobTier, key: str) -> StoredEncoding | None:
    data = tier.read(key)
    return None if data is None else unpack(data, f"{tier}/{key}", key)


def store_over(place: str | Path | BlobTier) -> Store:
    """Return a store over a folder, a URL or a tier, with memory of its own."""
    return Store(shape(), (place if isinstance(place, BlobTier) else FileTier(place),))


def files_of(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "encodings").iterdir())


class FailingTier(FileTier):
    """A tier whose reads or writes fail, with a reason for each."""

    failing: Mapping[str, str] = MappingProxyType({})

    def read(self, key: str) -> bytes | BinaryIO | None:
        if "read" in self.failing:
            raise TierUnavailable(self.failing["read"])
        return super().read(key)

    def write(self, key: str, data: bytes) -> None:
        if "write" in self.failing:
            raise TierUnavailable(self.failing["write"])
        super().write(key, data)


@dataclass
class DictTier(BlobTier):
    """The tier of a caller: four methods over a dict. It has no hash."""

    files: dict[str, bytes] = field(default_factory=dict)

    def read(self, key: str) -> bytes | None:
        return self.files.get(key)

    def write(self, key: str, data: bytes) -> None:
        self.files[key] = data

    def delete(self, key: str) -> None:
        self.files.pop(key, None)

    def keys(self) -> list[str]:
        return [*self.files, "a name that is no key"]


class FailingFiles(MemoryFileSystem):
    protocol = ("failing",)
    store: dict = {}  # noqa: RUF012 - as its parent keeps it
    pseudo_dirs = [""]  # noqa: RUF012
    before: Callable[[], object] = staticmethod(lambda: None)
    fail_on: frozenset[str] = frozenset()

    def _answer(self, name: str) -> None:
        if name in type(self).fail_on:
            type(self).before()

    def info(self, path: str, **named: object) -> dict:
        self._answer("info")
        return super().info(path, **named)

    def pipe_file(self, path: str, value: bytes, *rest: object, **named: object) -> None:
        self._answer("pipe_file")
        return super().pipe_file(path, value, *rest, **named)

    def rm_file(self, path: str) -> None:
        self._answer("rm_file")
        super().rm_file(path)


fsspec.register_implementation("failing", FailingFiles, clobber=True)


@contextmanager
def emptied() -> Iterator[None]:
    try:
        yield
    finally:
        FailingFiles.fail_on, FailingFiles.before = frozenset(), staticmethod(lambda: None)
        for files in (MemoryFileSystem, FailingFiles):
            files.store.clear()
            files.pseudo_dirs[:] = [""]


@dataclass
class Place:
    location: str

    def __post_init__(self) -> None:
        is_local = "://" not in self.location
        self.files, self.root = (LocalFiles(), self.location) if is_local else fsspec.core.url_to_fs(self.location)

    def tier(self, **options: object) -> FileTier:
        return FileTier(self.location, **options)  # type: ignore[arg-type]

    def path(self, key: str) -> str:
        return f"{self.root}/encodings/{key}.safetensors"

    def put(self, key: str, data: bytes) -> None:
        self.files.makedirs(f"{self.root}/encodings", exist_ok=True)
        if self.files.exists(self.path(key)):
            self.files.rm_file(self.path(key))  # mapped files stay as they are
        self.files.pipe_file(self.path(key), data)

    def names(self, part: str = "encodings") -> list[str]:
        folder = f"{self.root}/{part}"
        listed = self.files.ls(folder, detail=False) if self.files.exists(folder) else []
        return sorted(Path(path).name for path in listed)
