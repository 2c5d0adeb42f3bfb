"""One target under atheris: `python -m tests.fuzz.fuzz TARGET FINDINGS [libFuzzer's options and corpus folders]`.

Findings do not stop it: each kind is written to the folder once, under a name that says what it is, and what took long is
written too. Code under coverage is several times slower than it is otherwise, so whether an input is too slow is
judged by whoever replays it.
"""

import hashlib
import sys
import time
import traceback
from pathlib import Path

import atheris  # type: ignore[import-not-found, import-untyped, unused-ignore]

with atheris.instrument_imports(include=["promptcache"]):
    from tests.fuzz.targets import DIVIDER, TARGETS

MAX_INPUT_BYTES = 4096
_SLOW_S = 1.0  # of processor time, under coverage
_MAX_SLOW = 20

_MARKUP = ("<![CDATA[", "]]>", "<!--", "-->", "&lt;", "&#10;", "/>", "</", "{{", "}}", "{%", "%}", "## ", "\r\n")
_VALUES = (
    *("true", "false", "dedent", "preserve", "collapse", "compact", "own", "guaranteed", "int", "number", "line"),
    *("choice", "text", " and ", " or ", " not ", " implies ", "[a-z]+", "\\d{1,3}", ">=1,<2", "{% for x in names %}"),
    *("{% endfor %}", "{% if yes %}", "{% endif %}", "{% set x = 1 %}", "|join", "|length", '"role":', '"content":'),
)


def main() -> None:
    """Fuzz one target for as long as libFuzzer's options say."""
    program, name, findings, *options = sys.argv
    folder = Path(findings)
    folder.mkdir(parents=True, exist_ok=True)
    words = folder / "words.dict"
    quoted = ("".join(f"\\x{byte:02x}" for byte in word.encode()) for word in _words())
    words.write_text("".join(f'"{each}"\n' for each in quoted), encoding="ascii")
    options += [f"-dict={words}", f"-max_len={MAX_INPUT_BYTES}", f"-artifact_prefix={folder}/", "-rss_limit_mb=2048"]
    atheris.Setup([program, *options], _watched(name, folder))
    atheris.Fuzz()


def _watched(name: str, folder: Path):  # type: ignore[no-untyped-def]
    """Return the target; errors and slow inputs are recorded instead of raised."""
    target, slow = TARGETS[name], []

    def watched(data: bytes) -> None:
        start = time.process_time()
        try:
            target(data)
        except Exception as fault:  # noqa: BLE001 - every kind of finding is one
            file = folder / f"{name}-{_kind(fault)}"
            if not file.exists() or file.stat().st_size > len(data):
                file.write_bytes(data)
        if time.process_time() - start > _SLOW_S and len(slow) < _MAX_SLOW:
            slow.append(data)
            (folder / f"{name}-slow-{hashlib.sha256(data).hexdigest()[:8]}").write_bytes(data)

    return watched


def _kind(fault: Exception) -> str:
    """Return a name for findings that are probably the same: what was raised, and where."""
    where = traceback.extract_tb(fault.__traceback__)[-1]
    return f"{type(fault).__name__}-{Path(where.filename).stem}-{where.lineno}"


def _words() -> set[str]:
    from promptcache.language.syntax.attributes import attributes_of
    from promptcache.language.syntax.elements import ELEMENTS, PROMPT_ELEMENTS

    elements = {**ELEMENTS, **PROMPT_ELEMENTS}
    names = {*elements, *(each.name for element in elements.values() for each in attributes_of(element.node))}
    tags = {f"<{name}" for name in names} | {f"</{name}>" for name in names}
    values = {f' {name}="' for name in names}
    return {*names, *tags, *values, *_MARKUP, *_VALUES, DIVIDER.decode()}


if __name__ == "__main__":
    main()
