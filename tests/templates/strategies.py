"""Strategies for conversations, and for schemas with turns and a prompt, with the conversation that they make."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count, cycle
from typing import TypeAlias
from xml.sax.saxutils import escape

from hypothesis import strategies as st

from promptcache.language import CheckedSchema, Prompt, check_schema, parse_schema
from tests.templates.kinds import MARKERS, WORDS

_PIECES = (
    *("the", "dog", " ", "  ", "\n", "\n\n", "a", "s", "it's", "12", ".", "### User:", "Response:\n", "USER: ", "box"),
    *("<tool_response>", "<tool_response>", "user\n", *WORDS),
)
_CHARACTERS = st.text(alphabet="ab é日☃🙂\n\t.,:#'1-\u00a0▁", min_size=1, max_size=3)
_FORGED = (*MARKERS, "<s>", "</s>", "<unk>", "<0x41>", "<|im_", "end|>", "<s", "<")


def texts(*, forged: bool = False) -> st.SearchStrategy[str]:
    """Return a strategy for texts; those that are `forged` have written forms of control tokens."""
    piece = st.sampled_from(_PIECES) | _CHARACTERS
    if forged:
        piece = st.sampled_from(_FORGED) | piece
    return st.lists(piece, max_size=4).map("".join)


def chats(*, forged: bool = False) -> st.SearchStrategy[list[tuple[str, str]]]:
    turns = st.lists(texts(forged=forged), min_size=1, max_size=5)
    system = st.lists(texts(forged=forged), max_size=1)
    alternate = st.tuples(system, turns).map(lambda drawn: _alternate(*drawn))
    role = st.sampled_from(("system", "user", "assistant"))
    return st.one_of(
        alternate, alternate, alternate, st.lists(st.tuples(role, texts(forged=forged)), min_size=1, max_size=4)
    )


def _alternate(system: Sequence[str], turns: Sequence[str]) -> list[tuple[str, str]]:
    return [*(("system", text) for text in system), *zip(cycle(("user", "assistant")), turns, strict=False)]


@dataclass(frozen=True, slots=True)
class Split:
    schema: CheckedSchema
    chat: list[tuple[str, str]]
    prompt: Prompt


def splits() -> st.SearchStrategy[Split]:
    """Return a strategy for conversations that are cut behind a closed turn."""
    return st.tuples(st.lists(texts(), max_size=1), st.lists(texts(), min_size=2, max_size=5), st.integers(0, 3)).map(
        lambda drawn: _split(_alternate(*drawn[:2]), drawn[2])
    )


def _split(chat: list[tuple[str, str]], place: int) -> Split:
    places = [index for index in range(1, len(chat)) if chat[index - 1][0] != "user"]
    stop = places[place % len(places)] if places else 0
    xml = "".join(f"<{role}>{exact(text)}</{role}>" for role, text in chat[:stop])
    own = chat[stop:]
    if stop and own[-1][0] == "assistant" and place % 2:
        own = own[:-1] or own
    return Split(
        checked(xml),
        [*chat[:stop], *own],
        Prompt.from_messages("s", [{"role": role, "content": text} for role, text in own]),
    )


def exact(text: str) -> str:
    return f"<text>{escape(text)}</text>" if text else ""


def checked(xml: str) -> CheckedSchema:
    return check_schema(parse_schema(f'<schema name="s" whitespace="preserve" separator="">{xml}</schema>'))


@dataclass(frozen=True, slots=True)
class Slot:
    """A slot behind a text; `argument` is what the prompt gives for it."""

    text: str
    default: str
    argument: str | None


@dataclass(frozen=True, slots=True)
class Module:
    is_used: bool
    parts: tuple["Part", ...]


@dataclass(frozen=True, slots=True)
class Union:
    used: int | None
    members: tuple[tuple["Part", ...], ...]


Part: TypeAlias = str | Slot | Module | Union


@dataclass(frozen=True, slots=True)
class Example:
    """A question with its answer; if `is_used` is not None, they are a module of their own."""

    is_used: bool | None
    question: tuple[Part, ...]
    answer: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Draft:
    """A schema and a prompt. `open_turn` is the last turn of the schema, `bare` is text that continues it."""

    system: tuple[Part, ...] | None
    examples: tuple[Example, ...]
    open_turn: tuple[Part, ...] | None
    bare: str
    own: tuple[str, ...]


def drafts() -> st.SearchStrategy[Draft]:
    parts = _parts(st.nothing())
    for _ in range(2):
        inner = parts
        parts = _parts(
            st.builds(Module, st.booleans(), inner)
            | st.builds(Union, st.sampled_from((None, 0, 1)), st.tuples(inner, inner))
        )
    example = st.builds(Example, st.sampled_from((None, True, False)), parts, parts)
    return st.builds(
        Draft,
        st.none() | parts,
        st.lists(example, max_size=2).map(tuple),
        st.none() | parts,
        texts(),
        st.lists(texts(), min_size=1, max_size=3).map(tuple),
    )


def _parts(nested: st.SearchStrategy[Part]) -> st.SearchStrategy[tuple[Part, ...]]:
    slot = st.builds(
        Slot,
        st.sampled_from(("x", "x ", "x\n")),
        st.sampled_from(("", "two", "the dog")),
        st.none() | texts().map(lambda text: text[:12]),
    )
    return st.lists(texts() | slot | nested, max_size=3).map(tuple)


class Written:
    """A draft as a schema, a prompt and the conversation that they make."""

    def __init__(self, draft: Draft) -> None:
        self.chat: list[tuple[str, str]] = []
        self.prompt = Prompt("s")
        self._names = (f"n{number}" for number in count())
        self._used: dict[str, dict[str, str]] = {"": {}}  # the arguments of modules
        xml = list[str]()
        if draft.system is not None:
            xml.append(self._turn("system", draft.system, "", is_used=True))
        for example in draft.examples:
            xml.append(self._example(example))
        has_open = draft.open_turn is not None or not xml
        if has_open:
            xml.append(self._turn("user", draft.open_turn or (), "", is_used=True))
        self.schema = checked("".join(xml))
        self.prompt = self.prompt.fill(**self._used.pop(""))
        for path, arguments in self._used.items():
            self.prompt = self.prompt.use(path, **arguments)
        self._add(draft, has_open=has_open)

    def _add(self, draft: Draft, *, has_open: bool) -> None:
        roles = ("assistant", "user") if has_open else ("user", "assistant")
        own = draft.own[1:] if has_open else draft.own
        if has_open:
            role, text = self.chat[-1]
            self.chat[-1] = role, text + draft.bare
            self.prompt = self.prompt.text(draft.bare)
        for role, text in zip(cycle(roles), own, strict=False):
            self.chat.append((role, text))
            self.prompt = self.prompt.assistant(text) if role == "assistant" else self.prompt.user(text)

    def _example(self, example: Example) -> str:
        name = next(self._names) if example.is_used is not None else ""
        path = f"{name}/" if name else ""
        is_used = example.is_used is not False
        if name and is_used:
            self._used[name] = {}
        xml = self._turn("user", example.question, path, is_used=is_used)
        xml += self._turn("assistant", example.answer, path, is_used=is_used)
        return f'<module name="{name}">{xml}</module>' if name else xml

    def _turn(self, role: str, parts: tuple[Part, ...], path: str, *, is_used: bool) -> str:
        written = [self._part(part, path, is_used=is_used) for part in parts]
        if is_used:
            self.chat.append((role, "".join(text for _, text in written)))
        return f"<{role}>{''.join(xml for xml, _ in written)}</{role}>"

    def _part(self, part: Part, path: str, *, is_used: bool) -> tuple[str, str]:
        match part:
            case str():
                return exact(part), part
            case Slot():
                return self._slot(part, path, is_used=is_used)
            case Module():
                return self._module(part.parts, path, is_used=is_used and part.is_used)
            case Union():
                members = [
                    self._module(member, path, is_used=is_used and index == part.used)
                    for index, member in enumerate(part.members)
                ]
                return f"<union>{''.join(xml for xml, _ in members)}</union>", "".join(text for _, text in members)

    def _module(self, parts: tuple[Part, ...], path: str, *, is_used: bool) -> tuple[str, str]:
        name = next(self._names)
        if is_used:
            self._used[path + name] = {}
        written = [self._part(part, f"{path}{name}/", is_used=is_used) for part in parts]
        text = "".join(text for _, text in written) if is_used else ""
        return f'<module name="{name}">{"".join(xml for xml, _ in written)}</module>', text

    def _slot(self, slot: Slot, path: str, *, is_used: bool) -> tuple[str, str]:
        name = next(self._names)
        if is_used and slot.argument is not None:
            self._used[path.removesuffix("/")][name] = slot.argument
        xml = f'<parameter name="{name}" length="60" default="{slot.default}"/>'
        content = slot.default if slot.argument is None else slot.argument
        return exact(slot.text) + xml, slot.text + content


@dataclass(frozen=True, slots=True)
class Answer:
    """A question with a generated answer: texts that are tokenized separately, and an end token, by number, or none."""

    question: str
    pieces: tuple[str, ...]
    end: int | None


@dataclass(frozen=True, slots=True)
class Answered:
    """A conversation with generated answers; the last answer is not given back."""

    system: str | None
    answers: tuple[Answer, ...]


def answers() -> st.SearchStrategy[Answered]:
    """Return a strategy for conversations with answers. They begin with a letter, so that no header ends in them."""
    piece = st.text(alphabet="ab é🙂\n.", max_size=4).map(lambda text: "a" + text)
    answer = st.builds(
        Answer, texts(), st.lists(piece, min_size=1, max_size=3).map(tuple), st.none() | st.integers(0, 2)
    )
    return st.builds(Answered, st.none() | texts(), st.lists(answer, min_size=2, max_size=3).map(tuple))
