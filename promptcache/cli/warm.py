"""Encoding schemas ahead of time: the work of `promptcache warm`.

Comes in: schema files and options. Goes out: KV in a store, and an account of what was made and what was there. Every
check that needs no model is made before one is loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from promptcache.cli.files import checked_schema, read
from promptcache.cli.model_folder import Dtype, declared_positions, read_kv_sizes
from promptcache.cli.output import counted
from promptcache.cli.sizes import size_text
from promptcache.cli.sources import Sources
from promptcache.language import CheckedSchema
from promptcache.layout import check_length, lay_out, run_states
from promptcache.tokenizer import HubTokenizer, model_folder


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmOptions:
    """What the command line asks for.

    Attributes:
        store: A folder or URL.
        limit: Of the folder, in bytes.
        keep: Name of a codec.
    """

    model: str
    device: str | None
    dtype: Dtype
    store: str
    limit: int | None
    keep: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What warming a schema will take, from its tokens and the model's `config.json`.

    Attributes:
        longest: Tokens of its longest encoding with all that it attends to.
        nbytes: Of KV, as it will rest.
    """

    schema: str
    num_encodings: int
    num_tokens: int
    longest: int
    nbytes: int


def read_schemas(files: Sequence[str], sources: Sources) -> tuple[CheckedSchema, ...]:
    """Read and check all schemas.

    Raises:
        SchemaError: Every fault of the first that has any.
    """
    schemas = tuple(checked_schema(read(file, sources)) for file in files)
    sources.check_context()
    return schemas


def estimates(schemas: Sequence[CheckedSchema], options: WarmOptions) -> tuple[Estimate, ...]:
    """Estimate the work for each schema without loading a model.

    Raises:
        ModelNotFound: There is no such model.
        SchemaError: A filler longer than its slot, or more positions needed than the model has.
    """
    folder = model_folder(options.model)
    positions, kept_bytes = declared_positions(folder), _kept_bytes(options, folder)
    tokenizer = HubTokenizer.from_folder(folder)
    found = []
    for schema in schemas:
        layout = lay_out(schema, tokenizer)
        if positions is not None:
            check_length(layout, positions, f"model '{options.model}'")
        encodings = tuple(dict.fromkeys(state.encoding for state in run_states(layout)))
        lengths = [each.num_tokens for each in encodings]
        seen = (sum(part.num_tokens for part in (*each.context, each.whole)) for each in encodings)
        found.append(
            Estimate(
                schema=schema.name,
                num_encodings=len(encodings),
                num_tokens=sum(lengths),
                longest=max(seen, default=0),
                nbytes=sum(map(kept_bytes, lengths)),
            )
        )
    return tuple(found)


def estimate_text(found: Sequence[Estimate], options: WarmOptions) -> str:
    """Say in a line for each schema what it will take, and in one what all will."""
    lines = [
        f"{each.schema}: {counted(each.num_tokens, 'token')} in {counted(each.num_encodings, 'encoding')} to encode, "
        f"{size_text(each.nbytes)} kept as {options.keep}"
        for each in found
    ]
    if len(found) > 1:
        tokens, nbytes = sum(each.num_tokens for each in found), sum(each.nbytes for each in found)
        lines.append(f"together: {counted(tokens, 'token')}, {size_text(nbytes)}; less where schemas share text")
    return "".join(f"{line}\n" for line in lines)


def estimate_data(found: Sequence[Estimate], options: WarmOptions) -> dict[str, Any]:
    """Return estimates as data."""
    return {"model": options.model, "keep": options.keep, "schemas": [asdict(each) for each in found]}


def _kept_bytes(options: WarmOptions, folder: Path) -> Callable[[int], int]:
    """Return what tells the bytes of so many tokens as they are kept."""
    import torch

    from promptcache.kv import Codec, KVShape, kept_bytes

    sizes = read_kv_sizes(options.model, folder, options.dtype)
    on_cpu = options.device == "cpu" if options.device else not torch.cuda.is_available()
    halved = options.dtype is Dtype.AUTO and sizes.dtype is Dtype.FLOAT16 and on_cpu  # computed in float32 there
    shape = KVShape(
        num_layers=sizes.num_layers,
        num_kv_heads=sizes.num_kv_heads,
        head_dim=sizes.head_dim,
        dtype=torch.float32 if halved else getattr(torch, sizes.dtype),
        device=torch.device("cpu"),
    )
    return lambda num_tokens: kept_bytes(Codec(options.keep), shape, num_tokens)
