"""Follows docs/tutorial.md: its files, edits, commands and code, in order.

`python -m tests.tutorial` writes what they print into the page.
"""

import contextlib
import io
import re
import shlex
import tempfile
from pathlib import Path

from click.testing import CliRunner

from promptcache.cli.app import app

PAGE = Path(__file__).parents[1] / "docs" / "tutorial.md"
_STEP = re.compile(
    r"(?:^(?P<before>(?!```)[^\n]+(?:\n[^\n]+)*)\n\n)?^```(?P<language>xml|console|python)\n(?P<text>.*?)```$"
    r"(?:\n\nprints\n\n```\n(?P<printed>.*?)```$)?",
    re.DOTALL | re.MULTILINE,
)
_TIME = re.compile(r"[\d,]+\.\d+ (ms|s|tokens/s)\b")


def follow(page: str) -> str:
    """Return the page with what its commands and code print, in an empty working directory; times stay as shown."""
    namespace: dict[str, object] = {}

    def step(match: re.Match[str]) -> str:
        text, printed = match["text"], match["printed"]
        if match["language"] == "xml":
            _save(match["before"] or "", text)
            return match[0]
        if match["language"] == "console":
            return match[0].replace(text, _shown(text, _run_command(text)))
        found = _run_code(text, namespace)
        block = f"```python\n{text}```"
        shown = found if printed is None else _shown(printed, found)
        return match[0].partition(block)[0] + block + (f"\n\nprints\n\n```\n{shown}```" if shown else "")

    return _STEP.sub(step, page)


def _shown(old: str, new: str) -> str:
    """Return the old text if the new one differs in times only."""
    return old if _TIME.sub("", old) == _TIME.sub("", new) else new


def _save(before: str, text: str) -> None:
    """Write the document that the paragraph before it names, or make an edit in the schema and its changed copy."""
    named = [Path(name) for name in re.findall(r"`(\w+\.xml)`", before)]
    schema, edits_copy = Path("ferries.xml"), "changed schema" in before
    if text.startswith(("<schema", "<prompt")):
        named[-1].write_text(text, encoding="utf-8")
        return
    if edits_copy:
        named[0].write_text(schema.read_text(encoding="utf-8"), encoding="utf-8")
    for path in named[:1] if edits_copy else [schema, Path("next.xml")]:
        if path.exists():
            path.write_text(_edited(path.read_text(encoding="utf-8"), text), encoding="utf-8")


def _edited(schema: str, change: str) -> str:
    """Return a schema with a fragment of the page: in place of the line or module that it changes, or added."""
    name = re.match(r' *<module name="(\w+)"', change)
    if name is None and "<parameter" in change:
        return re.sub(rf"^ *{' '.join(change.split()[:6])}.*\n", lambda _: change, schema, flags=re.MULTILINE)
    if name is None:
        return schema.replace("</schema>", f"{change}</schema>")
    stop = r".*?</module>\n" if "</module>" in change else r"[^\n]*\n"
    old = re.compile(rf'^ *<module name="{name[1]}"{stop}', re.DOTALL | re.MULTILINE)
    if old.search(schema):
        return old.sub(lambda _: change, schema)
    return schema.replace("  </user>", f"{change}  </user>")


def _run_command(session: str) -> str:
    """Return a session with what its command prints."""
    line = session.partition("\n")[0]
    result = CliRunner().invoke(app, shlex.split(line.removeprefix("$ promptcache ")))
    return f"{line}\n{result.stdout}{result.stderr}".rstrip("\n") + "\n"


def _run_code(text: str, namespace: dict[str, object]) -> str:
    """Run a block and the tests that it defines; return the printed text."""
    known = set(namespace)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(text, PAGE.name, "exec"), namespace)
        for name, each in list(namespace.items()):
            if name.startswith("test_") and name not in known and callable(each):
                each()
    return printed.getvalue()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        followed = follow(PAGE.read_text(encoding="utf-8"))
    PAGE.write_text(followed, encoding="utf-8")
