"""A layout as a tree for the terminal.

Comes in: a `View`. Goes out: a tree on a console and the lines below it. This file only decides how things
are written.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.text import Text
from rich.tree import Tree

from promptcache.cli.layout_view import Node, NodeKind, View
from promptcache.cli.output import counted, size_text

_ROOT = "(root)"
_MAX_SEEN = 4
_MAX_PREVIEW = 40
_STYLES = {
    NodeKind.TEXT: "dim",
    NodeKind.SLOT: "magenta",
    NodeKind.TURN: "blue",
    NodeKind.MODULE: "bold",
    NodeKind.UNION: "yellow",
}


def print_layout(view: View, console: Console) -> None:
    """Print the tree of a layout, and the totals below it."""
    console.print(_tree(view))
    for line in _lines(view):
        console.print(line, markup=False, soft_wrap=True)


def _tree(view: View) -> Tree:
    """Return the tree of a layout: what stands where, what it costs, what it may see."""
    model = view.model
    title = Text(view.schema, style="bold")
    title.append(f"  positions [0, {view.num_positions:,})", style="not bold")
    title.append(
        f" · {model.name}, KV in {model.dtype}, {size_text(model.token_bytes)} per token", style="not bold dim"
    )
    tree = Tree(title, guide_style="dim")
    _add(tree, view.nodes)
    return tree


def _lines(view: View) -> Iterator[str]:
    """Yield what stands below the tree: text outside modules, scaffolds, totals, combinations, the longest prompt."""
    outside = f"{_ROOT}, all text outside modules: {counted(view.root.num_tokens, 'token')}"
    yield f"{outside} · {size_text(view.root.kv_bytes)}{_sees(view.root.sees)}"
    for scaffold in view.scaffolds:
        cost = f"{counted(scaffold.num_tokens, 'token')} once more · {size_text(scaffold.kv_bytes)}"
        yield f"scaffold {scaffold.name}: {' + '.join(scaffold.members)} · {cost}"
    encodings = counted(view.num_encodings, "encoding")
    yield f"to be encoded: {counted(view.num_tokens, 'token')} in {encodings} · {size_text(view.kv_bytes)}"
    at_least = "" if view.combinations_exact else "at least "
    yield f"valid combinations of modules: {at_least}{view.num_combinations:,}"
    limit = view.model.max_positions
    of = "" if limit is None else f" of {limit:,}"
    yield f"longest prompt: {view.num_positions:,}{of} positions, without text of its own"


def _add(tree: Tree, nodes: Sequence[Node]) -> None:
    for node in nodes:
        branch = tree.add(_label(node))
        alone = len(node.children) == 1 and node.children[0].kind is NodeKind.TEXT
        if not alone:  # the text of a plain module would only repeat its line
            _add(branch, node.children)


def _label(node: Node) -> Text:
    label = Text(_title(node), style=_STYLES[node.kind])
    details = f"  [{node.start:,}, {node.stop:,})"
    if node.kind is NodeKind.SLOT:
        details += f" {counted(node.stop - node.start, 'position')}"
    elif node.kind is not NodeKind.UNION:
        details += f" {counted(node.num_tokens, 'token')}"
    if node.kv_bytes:
        details += f" · {size_text(node.kv_bytes)}"
    details += "".join(f" · {_cut(mark)}" for mark in node.marks)
    label.append(details, style="not bold")
    label.append(_sees(node.sees), style="not bold dim")
    return label


def _title(node: Node) -> str:
    match node.kind:
        case NodeKind.TEXT:
            return _preview(node.name)
        case NodeKind.MODULE:
            return node.name
        case NodeKind.TURN:
            return f"<{node.name}>"
        case _:
            return f"{node.kind} {node.name}".strip()


def _preview(text: str) -> str:
    return f'"{_cut(" ".join(text.split()) or repr(text)[1:-1])}"'


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_PREVIEW else f"{text[:_MAX_PREVIEW]}…"


def _sees(modules: Sequence[str]) -> str:
    """Say in short what a text attends to: always its own earlier text, and what is listed here."""
    if not modules:
        return ""
    names = [module or _ROOT for module in modules[:_MAX_SEEN]]
    more = [f"{len(modules) - _MAX_SEEN} more"] if len(modules) > _MAX_SEEN else []
    return f" · sees {', '.join(names + more)}"
