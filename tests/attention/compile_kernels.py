"""Compile the Triton kernels for a GPU that is not there: `python -m tests.attention.compile_kernels 90`.

Prints one line for each kernel, with the bytes that it spills.
"""

import inspect
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from promptcache.attention import TritonBackend, segments_kernel
from promptcache.attention.triton_backend import _FEW_ROWS, _MANY_ROWS

_CUOBJDUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
_ATTEND = {
    **dict.fromkeys(("query", "own_keys", "own_values"), "*bf16"),
    **dict.fromkeys(("partial", "lse"), "*fp32"),
    "numbers": "*i64",
    "window": "i64",
}
_MERGE = {"out": "*bf16", "partial": "*fp32", "lse": "*fp32", "numbers": "*i64", "sinks": "*bf16"}
_STORE = {"keys": "*bf16", "values": "*bf16", "targets": "*i64"}


def compiled(capability: int) -> Iterator[tuple[str, bytes]]:
    """Yield a name and the machine code of each kernel, for all head sizes, numbers of rows, and windows."""
    for head_dim in sorted(TritonBackend.head_dims):
        groups = 7 if head_dim == 64 else 4
        for rows in (_FEW_ROWS, _MANY_ROWS):
            for has_window in (False, True):
                fixed = {
                    "GROUPS": groups,
                    "NUM_KV_HEADS": 2,
                    "D": head_dim,
                    "BLOCK_M": rows,
                    "BLOCK_N": segments_kernel.BLOCK_N,
                    "SCALE": head_dim**-0.5,
                    "HAS_WINDOW": has_window,
                }
                warps = segments_kernel.num_warps(head_dim, rows)
                code = _code(segments_kernel.attend_kernel, _ATTEND, fixed, capability, warps)
                yield f"attend D={head_dim} rows={rows} window={has_window}", code
        fixed = {"NUM_HEADS": 8, "D": head_dim, "HAS_SINKS": True}
        yield f"merge D={head_dim}", _code(segments_kernel.merge_kernel, _MERGE, fixed, capability, 1)
        yield f"store D={head_dim}", _code(segments_kernel.store_kernel, _STORE, {"D": head_dim}, capability, 1)


def _code(kernel: Any, types: Mapping[str, str], fixed: Mapping[str, object], capability: int, warps: int) -> bytes:
    names = list(inspect.signature(kernel.fn).parameters)
    source = ASTSource(
        fn=kernel,
        signature={name: "constexpr" if name in fixed else types.get(name, "i32") for name in names},
        constexprs={(names.index(name),): value for name, value in fixed.items()},
        attrs={
            (index,): [["tt.divisibility", 16]] for index, name in enumerate(names) if types.get(name, "")[:1] == "*"
        },
    )
    target = GPUTarget("cuda", capability, 32)
    code: bytes = triton.compile(source, target=target, options={"num_warps": warps, "num_stages": 2}).asm["cubin"]
    return code


def spilled_bytes(code: bytes) -> int:
    with TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.cubin"
        file.write_bytes(code)
        shown = subprocess.run([_CUOBJDUMP, "-res-usage", file], capture_output=True, text=True, check=True).stdout
    found = re.search(r"STACK:(\d+).*LOCAL:(\d+)", shown)
    assert found is not None, shown
    return int(found[1]) + int(found[2])


if __name__ == "__main__":
    for name, code in compiled(int(sys.argv[1])):
        print(name, spilled_bytes(code), flush=True)  # noqa: T201
