"""`promptcache layout`: show the positions, tokens and KV bytes of a schema, and what a prompt reuses of it.

The command reads the tokenizer and `config.json` of a model. It loads no weights.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path

import click
from rich.console import Console
from rich.text import Text
from rich.tree import Tree

from promptcache.cli.against import compare_layouts
from promptcache.cli.console import print_diagnostics, print_lines, stdout
from promptcache.cli.exits import ExitCode, UsageMistake
from promptcache.cli.files import checked_schema, files_read, parsed_prompt, read, write_made
from promptcache.cli.options import (
    DOCUMENT,
    Output,
    context_option,
    model_option,
    output_file,
    repair_option,
    schema_argument,
    with_json,
)
from promptcache.cli.output import ROOT, number_text, tell
from promptcache.cli.plan_counts import NEW, REUSED, PlanCounts
from promptcache.cli.prompt_lengths import PromptLength, prompt_lengths
from promptcache.cli.request import TokenLimits
from promptcache.cli.sources import Sources
from promptcache.diagnostics import SchemaError, as_data, counted, listed, size_text
from promptcache.language import (
    CheckedModule,
    CheckedTurn,
    CheckedUnion,
    Count,
    Repair,
    count_combinations,
    resolve_prompt,
)
from promptcache.layout import (
    Layout,
    LayoutLeaf,
    LayoutNode,
    LeafKind,
    Plan,
    RunState,
    Slot,
    StateKind,
    make_plan,
    with_members,
)
from promptcache.picture import layout_html, layout_svg
from promptcache.tokenizer import Dtype, ModelFacts, read_facts

_MAX_SEEN = 4
_MAX_PREVIEW = 40
_ABSENT = "dim"


@click.command("layout")
@schema_argument
@model_option()
@click.option(
    "--dtype", type=click.Choice([*map(str, Dtype)]), default="auto", help="Of the KV; auto is what config.json says."
)
@output_file("--svg", words="Draw the layout into an SVG file.")
@output_file("--html", words="Draw it into a page, with a slot table.")
@click.option("--prompt", metavar="PROMPT", type=DOCUMENT, help="Show what this prompt reuses.")
@repair_option
@click.option(
    "--against",
    metavar="OLD",
    type=DOCUMENT,
    help="Show only what has changed since this earlier version: encodings that stay, and those to make.",
)
@context_option
@with_json
def command(
    sources: Sources,
    schema: str,
    model: str,
    dtype: str,
    svg: Path | None,
    html: Path | None,
    prompt: str | None,
    repair: str | None,
    against: str | None,
) -> Output:
    """Show the positions, tokens and KV bytes of a schema, and what each module may see.

    SCHEMA is a schema file; - is standard input.
    """
    if svg is not None and svg == html:
        raise UsageMistake(f"--svg and --html both name {svg}")
    if repair is not None and prompt is None:
        raise UsageMistake("--repair is for a prompt; name it with --prompt PROMPT")
    checked = checked_schema(read(schema, sources))
    limits = TokenLimits.of(model)
    facts, tokenizer = read_facts(model, limits.folder, Dtype(dtype)), limits.tokenizer
    layout, states = limits.lay_out(checked, check=False)
    diagnostics, failed = (*checked.warnings, *layout.warnings), False
    try:
        limits.check(layout, states)
    except SchemaError as error:  # shown with the layout, which says where the positions go
        diagnostics, failed = (*diagnostics, *error.diagnostics), True
    change = None
    if against is not None:
        old = limits.lay_out(checked_schema(read(against, sources)), check=False)
        change = compare_layouts(old, (layout, states), facts.token_bytes)
    lengths, plan = prompt_lengths(layout, tokenizer), None
    if prompt is not None:
        selection = resolve_prompt(parsed_prompt(read(prompt, sources)), checked)
        plan = make_plan(selection, layout, states, tokenizer, None if repair is None else Repair.parse(repair))
        layout, states = with_members(selection, layout, states, tokenizer)
        diagnostics = (*diagnostics, *plan.warnings)
    view = view_layout(layout, states, facts, count_combinations(checked.rules), lengths, plan)
    pictures = {
        path: draw(layout, plan=plan, token_bytes=facts.token_bytes)
        for path, draw in ((svg, layout_svg), (html, layout_html))
        if path is not None
    }
    write_made(pictures, files_read(sources, checked))

    def show() -> None:
        if change is None:
            print_layout(view, stdout())
        else:
            print_lines(change.lines(), stdout())
        print_diagnostics(diagnostics, beside=True)
        tell(*(f"note: {note}" for note in tokenizer.warnings))

    found = [as_data(each) for each in diagnostics]
    data = {**asdict(view), "against": change and asdict(change), "notes": tokenizer.warnings, "diagnostics": found}
    return Output(data=data, text=show, code=ExitCode.FINDINGS if failed else ExitCode.OK)


class NodeKind(StrEnum):
    """Kind of a node of the tree."""

    TEXT = "text"
    SLOT = "slot"
    TURN = "turn"
    MODULE = "module"
    UNION = "union"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    """A part of a schema in the positions `[start, stop)`.

    Attributes:
        name: Path of a module, name of a parameter or union, role of a turn; the text itself of a text.
        num_tokens: Tokens of its own while slots hold their fillers; modules inside have their own number.
        kv_bytes: KV of a module's own text, 0 where it is not cached; None for everything else.
        sees: The modules that a module's own text attends to besides itself; "" is the schema's text outside modules.
        marks: Further properties: required, not cached, open, absent, ...
        num_reused_tokens: Of its own tokens, those that the prompt reuses; None without a prompt.
        num_new_tokens: Those that the prompt prefills; None without a prompt.
    """

    kind: NodeKind
    name: str
    start: int
    stop: int
    num_tokens: int = 0
    kv_bytes: int | None = None
    sees: tuple[str, ...] = ()
    marks: tuple[str, ...] = ()
    num_reused_tokens: int | None = None
    num_new_tokens: int | None = None
    children: tuple[NodeView, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaffoldView:
    """Tokens that a scaffold adds: they are encoded once more, together."""

    name: str
    members: tuple[str, ...]
    num_tokens: int
    kv_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RootView:
    """The schema's text outside modules, BOS included."""

    num_tokens: int
    kv_bytes: int
    sees: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptView(PlanCounts):
    """Tokens of a prompt for a schema. After the schema, it adds the tokens in `[start, next_position)`."""

    start: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutView:
    """Everything that `promptcache layout` says about a schema.

    Attributes:
        num_positions: Of all modules and whole slots, without the text of a prompt.
        num_tokens: All encoded tokens, those of scaffolds included.
        num_combinations: Valid sets of modules; at least that many where `combinations_exact` is false.
        shortest, longest: Tokens of the shortest and of the longest prompt, without text that it adds.
        prompt: None where no prompt was given.
    """

    schema: str
    model: ModelFacts
    num_positions: int
    num_encodings: int
    num_tokens: int
    kv_bytes: int
    num_combinations: int
    combinations_exact: bool
    shortest: PromptLength
    longest: PromptLength
    root: RootView
    nodes: tuple[NodeView, ...]
    scaffolds: tuple[ScaffoldView, ...]
    prompt: PromptView | None


def view_layout(
    layout: Layout,
    states: Sequence[RunState],
    model: ModelFacts,
    combinations: Count,
    lengths: tuple[PromptLength, PromptLength],
    plan: Plan | None = None,
) -> LayoutView:
    """Return a layout as it is shown.

    Args:
        layout: Of the schema, under the model's tokenizer.
        states: What `run_states(layout)` returned.
        model: Says what a token costs.
        combinations: Valid sets of the schema's modules.
        lengths: Of the shortest and of the longest prompt.
        plan: Of a prompt for this layout.
    """
    viewer = _Viewer(layout, states, model.token_bytes, plan)
    num_tokens = sum(each.encoding.num_tokens for each in states)
    return LayoutView(
        schema=layout.schema.name,
        model=model,
        num_positions=layout.stop,
        num_encodings=len(states),
        num_tokens=num_tokens,
        kv_bytes=num_tokens * model.token_bytes,
        num_combinations=combinations.number,
        combinations_exact=combinations.exact,
        shortest=lengths[0],
        longest=lengths[1],
        root=viewer.root(),
        nodes=tuple(viewer.nodes(layout.tree)),
        scaffolds=tuple(viewer.scaffolds()),
        prompt=None if plan is None else _view_prompt(plan),
    )


class _Viewer:
    """Adds tokens, bytes and contexts to the tree of a layout, and what a plan does with it."""

    def __init__(self, layout: Layout, states: Sequence[RunState], token_bytes: int, plan: Plan | None) -> None:
        self._layout = layout
        self._states = states
        self._token_bytes = token_bytes
        self._uses = None if plan is None else _Uses(plan)
        self._plain: dict[str, list[RunState]] = {}
        for each in states:
            if each.kind is StateKind.PLAIN:
                self._plain.setdefault(self._module_of(each), []).append(each)

    def root(self) -> RootView:
        """Return the text outside all modules."""
        num_tokens = sum(each.encoding.num_tokens for each in self._plain.get("", ()))
        return RootView(num_tokens=num_tokens, kv_bytes=num_tokens * self._token_bytes, sees=self._seen_by(""))

    def scaffolds(self) -> Iterator[ScaffoldView]:
        """Yield what each scaffold adds, in declared order."""
        for scaffold in self._layout.schema.scaffolds:
            num_tokens = sum(each.encoding.num_tokens for each in self._states if scaffold.name in each.scaffolds)
            yield ScaffoldView(
                name=scaffold.name,
                members=scaffold.members,
                num_tokens=num_tokens,
                kv_bytes=num_tokens * self._token_bytes,
            )

    def nodes(self, nodes: Iterable[LayoutNode | LayoutLeaf]) -> Iterator[NodeView]:
        """Yield a view of each node; BOS, headers and footers have none."""
        for node in nodes:
            if isinstance(node, LayoutNode):
                yield self._node(node)
            elif node.kind in (LeafKind.TEXT, LeafKind.SLOT):
                yield self._leaf(node)

    def _node(self, node: LayoutNode) -> NodeView:
        own = [child for child in node.children if isinstance(child, LayoutLeaf)]
        num_tokens = sum(leaf.num_tokens for leaf in own)
        used = [self._use(leaf) for leaf in own]
        kind, name, marks = _described(node.item)
        is_module = isinstance(node.item, CheckedModule)
        absent = isinstance(node.item, CheckedModule) and self._uses and node.item.path not in self._uses.modules
        cached = isinstance(node.item, CheckedModule) and node.item.cache
        return NodeView(
            kind=kind,
            name=name,
            start=node.start,
            stop=node.stop,
            num_tokens=num_tokens,
            kv_bytes=num_tokens * self._token_bytes * cached if is_module else None,
            sees=self._seen_by(name) if is_module else (),
            marks=(*marks, "absent") if absent else marks,
            num_reused_tokens=sum(reused for reused, _ in used) if self._uses else None,
            num_new_tokens=sum(new for _, new in used) if self._uses else None,
            children=tuple(self.nodes(node.children)),
        )

    def _leaf(self, leaf: LayoutLeaf) -> NodeView:
        piece = leaf.piece
        reused, new = self._use(leaf)
        kind, name, marks = NodeKind.TEXT, "", ()
        if isinstance(piece, Slot):
            parameter = self._layout.schema.parameters[piece.module][piece.parameter]
            fillers = {"default": parameter.default, "placeholder": parameter.placeholder}
            given = tuple(f"{name} {text!r}" for name, text in fillers.items() if text is not None)
            size = (f"length {parameter.length} and the space before it",) if piece.lead else ()
            required = ("required",) if parameter.required else ()
            kind, name, marks = NodeKind.SLOT, parameter.name, (*size, *required, *given)
        else:
            name = piece.text
        return NodeView(
            kind=kind,
            name=name,
            start=leaf.start,
            stop=leaf.stop,
            num_tokens=leaf.num_tokens,
            marks=marks,
            num_reused_tokens=reused if self._uses else None,
            num_new_tokens=new if self._uses else None,
        )

    def _use(self, leaf: LayoutLeaf) -> tuple[int, int]:
        module = self._layout.runs[leaf.run].module
        if self._uses is None or (module and module not in self._uses.modules):
            return 0, 0
        return self._uses.count(leaf)

    def _seen_by(self, module: str) -> tuple[str, ...]:
        """Return the modules whose text the plain states of a module attend to, in document order, without itself."""
        indices = dict.fromkeys(index for each in self._plain.get(module, ()) for index in each.sees)
        seen = [self._states[index] for index in indices]
        bos = 0 if self._layout.has_bos else None  # everything sees it
        paths = dict.fromkeys(self._module_of(each) for each in seen if each.run != bos)
        return tuple(path for path in paths if path != module)

    def _module_of(self, state: RunState) -> str:
        return state.module(self._layout)


class _Uses:
    """Reused and new tokens of a plan, by the text or slot that they belong to."""

    def __init__(self, plan: Plan) -> None:
        self.modules = frozenset(plan.selection.modules)
        self._parameters = plan.layout.schema.parameters
        self._arguments = {(each.module, each.parameter): each.text for each in plan.selection.arguments}
        self._reused = sorted(place for piece in plan.reused for place in piece.places)
        self._contents = {
            (new.module, new.parameter): len(new.token_ids) for new in plan.new if new.parameter is not None
        }

    def count(self, leaf: LayoutLeaf) -> tuple[int, int]:
        """Return how many tokens of a text or slot are reused, and how many are new.

        New tokens are not counted by place: an argument may have other tokens than the filler.
        """
        reused = bisect_left(self._reused, leaf.stop) - bisect_left(self._reused, leaf.start)
        piece = leaf.piece
        if not isinstance(piece, Slot):
            return reused, leaf.num_tokens - reused
        name = (piece.module, piece.parameter)
        if name in self._contents:
            return reused, self._contents[name]
        default = self._parameters[piece.module][piece.parameter].default or ""
        is_empty = not piece.lead + self._arguments.get(name, default)
        return reused, 0 if is_empty else leaf.num_tokens - reused  # the content is the filler


def _described(item: CheckedModule | CheckedUnion | CheckedTurn) -> tuple[NodeKind, str, tuple[str, ...]]:
    """Return kind, name and marks of an item of a schema."""
    match item:
        case CheckedModule():
            marks = [(item.required, "required"), (not item.cache, "not cached")]
            if item.collection is not None:
                most = "any number" if item.collection.maximum is None else str(item.collection.maximum)
                marks.append((True, f"collection, {item.collection.minimum} to {most}"))
            return NodeKind.MODULE, item.path, tuple(mark for holds, mark in marks if holds)
        case CheckedUnion():
            chosen = "at most one" if not item.required and item.default is None else "exactly one"
            default = () if item.default is None else (f"default {item.default}",)
            return NodeKind.UNION, item.name or "", (chosen, *default)
        case CheckedTurn():
            return NodeKind.TURN, item.role, ("open",) if item.open else ()


def _view_prompt(plan: Plan) -> PromptView:
    added = [new.start for new in plan.added]
    return PromptView(**asdict(PlanCounts.of(plan)), start=min(added, default=plan.stop))


def print_layout(view: LayoutView, console: Console) -> None:
    """Print the tree of a layout, and the totals below it."""
    console.print(_tree(view))
    print_lines(_lines(view), console)


def _tree(view: LayoutView) -> Tree:
    """Return the tree of a layout with positions, costs and contexts."""
    model = view.model
    title = Text(view.schema, style="bold")
    title.append(f"  positions [0, {view.num_positions:,})", style="not bold")
    title.append(
        f" · {model.name}, KV in {model.dtype}, {size_text(model.token_bytes)} per token", style="not bold dim"
    )
    tree = Tree(title, guide_style="dim")
    _add(tree, view.nodes)
    if view.prompt is not None and view.prompt.start < view.prompt.next_position:
        start, stop = view.prompt.start, view.prompt.next_position
        label = Text("added by the prompt", style=NEW)
        tree.add(label.append(f"  [{start:,}, {stop:,}) {counted(stop - start, 'token')}", style="not bold"))
    return tree


def _lines(view: LayoutView) -> Iterator[str | Text]:
    """Yield the lines below the tree: the prompt, text outside modules, scaffolds, totals, the longest prompt."""
    if view.prompt is not None:
        yield view.prompt.line("prompt: ", f"{counted(view.prompt.num_reused_tokens, 'token')} reused")
    outside = f"{ROOT}, all text outside modules: {counted(view.root.num_tokens, 'token')}"
    yield f"{outside} · {size_text(view.root.kv_bytes)}{_sees(view.root.sees)}"
    for scaffold in view.scaffolds:
        cost = f"{counted(scaffold.num_tokens, 'token')} once more · {size_text(scaffold.kv_bytes)}"
        yield f"scaffold {scaffold.name}: {' + '.join(scaffold.members)} · {cost}"
    encodings = counted(view.num_encodings, "encoding")
    once = view.root.kv_bytes + sum(each.kv_bytes or 0 for each in _walk(view.nodes))
    more = f", {size_text(view.kv_bytes - once)} of it once more in other contexts" if view.kv_bytes > once else ""
    yield f"to be encoded: {counted(view.num_tokens, 'token')} in {encodings} · {size_text(view.kv_bytes)}{more}"
    yield f"valid combinations of modules: {number_text(view.num_combinations, exact=view.combinations_exact)}"
    shortest, longest = (
        f"{'' if each.exact else 'about '}{each.num_tokens:,}" for each in (view.shortest, view.longest)
    )
    yield f"prompts without text of their own: {shortest} to {longest} tokens"
    limit = view.model.max_positions
    of = "" if limit is None else f" of {limit:,}"
    yield f"all modules: {view.num_positions:,}{of} positions, slots whole"


def _walk(nodes: Iterable[NodeView]) -> Iterator[NodeView]:
    """Yield nodes and all that is in them."""
    for node in nodes:
        yield node
        yield from _walk(node.children)


_STYLES = {
    NodeKind.TEXT: "dim",
    NodeKind.SLOT: "magenta",
    NodeKind.TURN: "blue",
    NodeKind.MODULE: "bold",
    NodeKind.UNION: "yellow",
}


def _add(tree: Tree, nodes: Sequence[NodeView], *, absent: bool = False) -> None:
    for node in nodes:
        is_absent = absent or "absent" in node.marks
        branch = tree.add(_label(node, absent=is_absent))
        alone = len(node.children) == 1 and node.children[0].kind is NodeKind.TEXT
        if not alone:  # the text of a plain module would only repeat its line
            _add(branch, node.children, absent=is_absent)


def _label(node: NodeView, *, absent: bool) -> Text:
    label = Text(_title(node), style=_style(node, absent=absent))
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
    used = [(node.num_reused_tokens, "reused", REUSED), (node.num_new_tokens, "new", NEW)]
    for separator, (number, words, style) in zip((" · ", ", "), [each for each in used if each[0]], strict=False):
        label.append(separator).append(f"{number:,} {words}", style=style)
    return label


def _style(node: NodeView, *, absent: bool) -> str:
    """Return the style of a node's name: by its use where a prompt is shown, else by its kind."""
    if absent:
        return _ABSENT
    if node.num_reused_tokens:
        return REUSED
    return NEW if node.num_new_tokens else _STYLES[node.kind]


def _title(node: NodeView) -> str:
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
    """Return a short list of what a text attends to besides its own earlier text."""
    if not modules:
        return ""
    return f" · sees {listed([module or ROOT for module in modules], _MAX_SEEN)}"
