"""Conversations: each answer is that of an engine without history, over the same turns."""

import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from promptcache.decode import Completion
from promptcache.diagnostics import ContextLengthExceeded, InvalidGeneration, InvalidValue, PromptError, UnknownSchema
from promptcache.engine import Engine
from promptcache.kv import StoreConfig
from promptcache.language import Prompt
from promptcache.session import Chat
from promptcache.testing.byte_tokenizer import ByteTokenizer
from promptcache.testing.cached import distance
from promptcache.testing.tiny_model import CONTEXT_LENGTH, tiny_model
from tests.conftest import law_examples
from tests.engine.asking import engine_of
from tests.engine.test_history import logprobs

SCHEMA = """<schema name="s">Root. <module name="a">Text of <parameter name="p" length="8" default="none"/> goes on.</module>
<union name="u"><module name="c">The c.</module><module name="d">Some other d.</module></union></schema>"""
OPEN = """<schema name="chat"><system>Be brief.</system><user>Read <module name="m">this text</module> and answer.</user></schema>"""
PROMPTS = (
    Prompt("s"),
    Prompt("s").use("a", p="some").use("c"),
    Prompt("s").use("a", p="more").use("c"),
    Prompt("s").use("d").system("Be kind."),
    Prompt("chat").use("m"),
)
ASKING = (
    Prompt("s").use("d").user("First?"),
    Prompt("s").use("c").user("First?").user("Then?"),
    Prompt("chat").use("m").user("First?").assistant("Yes.").user("Then?"),
)
"""Prompts that end with a question, or with several."""
GREEDY: dict[str, Any] = {"do_sample": False}
TOLERANCE = 1e-9
MODEL, TOKENIZER = tiny_model(), ByteTokenizer()


def engine(**options: Any) -> Engine:
    made = engine_of(MODEL, TOKENIZER, SCHEMA, **options)
    made.add_schema(OPEN)
    return made


PLAIN = engine(history=False)


def check_as_plain(made: Engine, chat: Chat, text: str | None, **options: Any) -> Completion:
    without = Chat(PLAIN._requests, chat.prompt, {**chat.options, "salt": None}, chat.turns, chat.question)
    expected, found = (each.say(text, **{**GREEDY, "logprobs": 20, **options}) for each in (without, chat))
    assert found.token_ids == expected.token_ids
    assert distance(logprobs(found), logprobs(expected)) < TOLERANCE
    assert (chat.turns, chat.messages) == (without.turns, without.messages)
    return found


@dataclass(kw_only=True)
class Told:
    """A chat, and what it must be: a list of messages, and whether the last one waits for the first answer."""

    chat: Chat
    messages: list[dict[str, str]]
    waits: bool

    @classmethod
    def begun(cls, chat: Chat, prompt: Prompt) -> "Told":
        messages = written(prompt)
        return cls(chat=chat, messages=messages, waits=bool(messages) and messages[-1]["role"] == "user")

    def copied(self, chat: Chat) -> "Told":
        return replace(self, chat=chat, messages=[*self.messages])

    def ask(self, text: str) -> str | None:
        """Return what to say: `text`, or None if a question waits. The question is a message then."""
        if not self.waits:
            self.messages.append({"role": "user", "content": text})
        asked, self.waits = None if self.waits else text, False
        return asked

    def answer(self, text: str) -> None:
        self.messages.append({"role": "assistant", "content": text})


def written(prompt: Prompt) -> list[dict[str, str]]:
    return [{"role": str(each.role), "content": each.text} for each in prompt.messages]


def saved(made: Engine, path: Path, *questions: str, prompt: Any = PROMPTS[1]) -> Chat:
    chat = made.chat(prompt)
    for each in questions:
        chat.say(each, max_new_tokens=9, min_new_tokens=9, **GREEDY)
    chat.save(path)
    return chat


def edit(path: Path, *turns: dict[str, Any], **fields: Any) -> Any:
    data = json.loads(path.read_text()) | fields
    for turn, change in zip(data["turns"], turns, strict=False):
        turn.update(change)
    path.write_text(json.dumps(data))
    return data


class Conversations(RuleBasedStateMachine):
    """Chats on one engine, beside lists of messages: forks, rewinds, other prompts, files, edits, evictions and salts."""

    memory_tokens = 20_000

    def __init__(self) -> None:
        super().__init__()
        size = MODEL.shape.token_bytes
        self.engine = engine(store=StoreConfig(memory_bytes=size * self.memory_tokens))
        self.chats = [Told.begun(self.engine.chat(PROMPTS[1]), PROMPTS[1])]

    @rule(prompt=st.sampled_from(PROMPTS + ASKING), repair=st.sampled_from((None, "none", "first-2", "all")))
    def start(self, prompt: Prompt, repair: str | None) -> None:
        chat = self.engine.chat(prompt, repair=repair, salt="x" if len(self.chats) % 3 == 2 else None)
        self.chats.append(Told.begun(chat, prompt))

    @rule(
        number=st.integers(0, 9),
        text=st.sampled_from(("Go on.", "What?", "")),
        max_new_tokens=st.integers(1, 6),
        ends=st.sampled_from(((), (32,), (101, 110), (10,))),
    )
    def say(self, number: int, text: str, max_new_tokens: int, ends: tuple[int, ...]) -> None:
        told = self._told(number)
        options: dict[str, Any] = {"eos_token_id": list(ends)} if ends else {}
        found = check_as_plain(self.engine, told.chat, told.ask(text), max_new_tokens=max_new_tokens, **options)
        told.answer(found.text)

    @rule(number=st.integers(0, 9))
    def stream(self, number: int) -> None:
        told = self._told(number)
        told.answer("".join(told.chat.stream(told.ask("And?"), max_new_tokens=3, **GREEDY)))

    @rule(number=st.integers(0, 9))
    def leave(self, number: int) -> None:
        """Close a stream after its first piece, which may be its last one."""
        told = self._told(number)
        stream = told.chat.stream(None if told.waits else "Left?", max_new_tokens=8, **GREEDY)
        next(stream, None)
        stream.close()
        if stream.completion is not None:
            told.ask("Left?")
            told.answer(stream.completion.text)

    @rule(number=st.integers(0, 9), calls=st.integers(0, 4))
    def fail(self, number: int, calls: int) -> None:
        told, left = self._told(number), [calls]

        def processor(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            left[0] -= 1
            if left[0] < 0:
                raise ArithmeticError("on purpose")
            return scores

        options: dict[str, Any] = {"max_new_tokens": 6, "eos_token_id": [], "logits_processor": [processor]}
        with pytest.raises(ArithmeticError):
            told.chat.say(None if told.waits else "Fail?", **options, **GREEDY)

    @rule(number=st.integers(0, 9))
    def fork(self, number: int) -> None:
        told = self._told(number)
        self.chats.append(told.copied(told.chat.fork()))

    @rule(number=st.integers(0, 9), n=st.integers(1, 3))
    def rewind(self, number: int, n: int) -> None:
        told = self._told(number)
        if n <= len(told.chat.turns):
            told.chat.rewind(n)
            del told.messages[-2 * n :]

    @rule(number=st.integers(0, 9), prompt=st.sampled_from(PROMPTS[:4] + ASKING))
    def change(self, number: int, prompt: Prompt) -> None:
        told = self._told(number)
        changed, num_turns = told.chat.with_prompt(prompt), len(told.chat.turns)
        if num_turns:
            said = [*written(prompt), *told.messages[-2 * num_turns :]]
            self.chats.append(Told(chat=changed, messages=said, waits=False))
        else:
            self.chats.append(Told.begun(changed, prompt))

    @rule(number=st.integers(0, 9))
    def restart(self, number: int) -> None:
        told = self._told(number)
        loaded = self._loaded(told).chat
        assert (loaded.turns, loaded.options) == (told.chat.turns, told.chat.options)
        assert loaded.prompt.to_xml() == told.chat.prompt.to_xml()

    def _loaded(self, told: Told, *turns: dict[str, Any]) -> Told:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "chat.json"
            told.chat.save(path)
            edit(path, *turns)
            self.chats.append(told.copied(self.engine.load_chat(path, salt=told.chat.options.get("salt"))))
        return self.chats[-1]

    @rule(number=st.integers(0, 9), turn=st.integers(0, 9), field=st.sampled_from(("question", "answer")))
    def edit(self, number: int, turn: int, field: str) -> None:
        told = self._told(number)
        num_turns = len(told.chat.turns)
        if num_turns:
            messages = self._loaded(told, *[{}] * (turn % num_turns), {field: "Edited."}).messages
            place = 2 * (turn % num_turns - num_turns) + (field == "answer")
            messages[place] = {**messages[place], "content": "Edited."}

    @invariant()
    def conversations_are_their_messages(self) -> None:
        """Each chat has the messages of its list; a question waits only at the end of a prompt."""
        for each in self.chats:
            assert each.chat.messages == each.messages
            assert each.chat.question == (each.messages[-1]["content"] if each.waits else None)

    @invariant()
    def history_is_within_its_limits(self) -> None:
        memory = self.engine.store.memory
        assert self.engine._executor.history.nbytes <= memory.nbytes() <= memory.budget_bytes

    def _told(self, number: int) -> Told:
        return self.chats[number % len(self.chats)]

    @rule()
    def clear(self) -> None:
        self.engine.clear_history()
        assert self.engine._executor.history.nbytes == 0

    @rule(number=st.integers(0, 50))
    def evict(self, number: int) -> None:
        keys = list(self.engine.store.keys())
        if keys:
            self.engine.store.delete(keys[number % len(keys)])


class SmallConversations(Conversations):
    memory_tokens = 320


for _machine in (Conversations, SmallConversations):
    _machine.TestCase.settings = settings(
        max_examples=max(10, law_examples(0.1, thorough=0.4)), stateful_step_count=20, deadline=None
    )

TestConversations = pytest.mark.law(Conversations.TestCase)
TestSmallConversations = pytest.mark.law(SmallConversations.TestCase)


def test_each_turn_prefills_the_last_question_only() -> None:
    """A turn prefills the last token before it, its frames and its question, also in a fork, and copies only those."""
    made = engine()
    chat = made.chat(PROMPTS[1])
    chat.say("First?", max_new_tokens=4, **GREEDY)
    for _ in range(20):
        usage = chat.say("Next?", max_new_tokens=4, **GREEDY).usage
        assert usage.num_new_tokens == len("Next?") + 1 + 4
        assert usage.kept_bytes <= (usage.num_new_tokens + 4) * MODEL.shape.token_bytes
    fork = chat.fork()
    chat.say("Left", max_new_tokens=4, **GREEDY)
    assert fork.say("Right", max_new_tokens=4, **GREEDY).usage.num_new_tokens <= len("Right") + 1 + 4
    chat.rewind(2)
    assert (len(chat.turns), len(fork.turns), len(made._executor.history._nodes) <= 8) == (20, 22, True)


def test_an_open_turn_is_continued_by_the_first_question() -> None:
    chat = PLAIN.chat(PROMPTS[4])
    chat.say("Now?", max_new_tokens=2, **GREEDY)
    chat.say("Then?", max_new_tokens=2, **GREEDY)

    expected = PLAIN.generate('<prompt schema="chat"><m/>Now?</prompt>', max_new_tokens=2, **GREEDY)
    assert chat.turns[0].token_ids == expected.token_ids
    assert [each["role"] for each in chat.messages] == ["user", "assistant"] * 2


def test_a_chat_that_grows_meanwhile_keeps_its_turns() -> None:
    """A second answer to the same state of a chat is refused, and the first one stays."""
    chat = engine().chat(PROMPTS[0])
    stream = chat.stream("One?", max_new_tokens=50, **GREEDY)
    next(stream)
    chat.say("Two?", max_new_tokens=1, **GREEDY)

    with pytest.raises(InvalidValue, match="fork"):
        list(stream)
    assert [turn.question for turn in chat.turns] == ["Two?"]


@pytest.mark.parametrize(
    ("ask", "error", "message"),
    [
        (lambda chat: chat.say("One?", max_tokens=3), InvalidGeneration, "max_tokens"),
        *(
            (
                lambda chat, name=name: chat.say("One?", **{name: "all"}),
                InvalidGeneration,
                rf"engine\.chat\(…, {name}=…\)",
            )
            for name in ("repair", "salt")
        ),
        (lambda chat: chat.say("word " * CONTEXT_LENGTH), ContextLengthExceeded, "rewind"),
        (lambda chat: chat.say(3), InvalidValue, "text"),
        (lambda chat: chat.say(), InvalidValue, "needs a text"),
        (lambda chat: chat.rewind(), InvalidValue, "n=1: the chat has 0 questions$"),
        (lambda chat: chat.rewind(0), InvalidValue, "n="),
        (lambda chat: chat.with_prompt("<prompt/>"), InvalidValue, "Prompt"),
        (lambda chat: chat.with_prompt(Prompt("s").use("nothing")).say("One?"), PromptError, "nothing"),
        (lambda chat: chat.with_prompt(Prompt("nothing")).say("One?"), UnknownSchema, "nothing"),
        (lambda chat: PLAIN.chat(ASKING[0]).say("And then?"), InvalidValue, "answer it first with say"),
        (lambda chat: PLAIN.chat(PROMPTS[0], repair="bogus"), InvalidValue, "bogus"),
        (lambda chat: PLAIN.load_chat("none.json"), InvalidValue, "cannot be read"),
    ],
)
def test_mistakes_leave_the_chat_as_it_was(ask: Callable[[Chat], object], error: type[Exception], message: str) -> None:
    """An option or value that is refused, a prompt that is wrong, or no room: the conversation has no new turn."""
    chat = PLAIN.chat(PROMPTS[0])
    with pytest.raises(error, match=message):
        ask(chat)
    assert chat.turns == ()


@pytest.mark.parametrize(
    ("text", "name"), [("not in XML: \x00", "chat.json"), ("Text.", "folder"), ("Text.", "missing/chat.json")]
)
def test_a_failed_save_changes_nothing(text: str, name: str, tmp_path: Path) -> None:
    """After a save that fails, an earlier file is as before, and nothing else is there."""
    (tmp_path / "folder").mkdir()
    saved(PLAIN, tmp_path / "chat.json", "First")
    before = (tmp_path / "chat.json").read_bytes()
    other = PLAIN.chat(PROMPTS[1].system(text))

    with pytest.raises((PromptError, OSError)):
        other.save(tmp_path / name)

    assert {each.name for each in tmp_path.rglob("*")} == {"folder", "chat.json"}
    assert (tmp_path / "chat.json").read_bytes() == before


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{}", *(f'{{"format": "promptcache chat", "version": {number}}}' for number in (1, 2)), "[" * 100_000],
    ids=lambda each: each[:60],
)
def test_files_of_another_form_are_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "chat.json"
    path.write_text(content)
    with pytest.raises(InvalidValue, match=r"chat\.json is not a saved chat"):
        PLAIN.load_chat(path)


CALLED = {"tool_calls": [["weather", "{}"]]}


@pytest.mark.parametrize(
    ("turns", "fields", "message"),
    [
        *(
            ([], fields, "")
            for fields in (
                {"repair": "bogus"},
                {"messages": [3]},
                {"turns": {}},
                {"prompt": "<x/>"},
                {"question": 3, "turns": []},
                {"question": "\ud800", "turns": []},
                {"prompt": "<prompt schema='chat'>bare text<user>Why?</user></prompt>"},
            )
        ),
        *(
            ([turn], {}, "")
            for turn in (
                *({"token_ids": each} for each in ([-1], "x")),
                *({"question": each} for each in (3, "\ud800")),
                {"answer": "\udfff"},
            )
        ),
        ([{}, {"results": ["7"], "question": ""}], {}, r"turns\[1\] has 1 result: the answer before has 0 calls"),
        ([CALLED, {"results": ["7", "8"], "question": ""}], {}, r"turns\[1\] has 2 results: .* before has 1 call;"),
        ([CALLED, {"results": ["7"], "question": "And?"}], {}, r"turns\[1\] has 1 result and a question"),
    ],
)
def test_damaged_files_are_refused(
    tmp_path: Path, turns: list[dict[str, Any]], fields: dict[str, Any], message: str
) -> None:
    """A file with a damaged field or turn, or with results that do not match the calls before, is refused by name."""
    path = tmp_path / "chat.json"
    saved(PLAIN, path, "One?", "Two?")
    edit(path, *turns, **fields)

    with pytest.raises(InvalidValue, match=rf"chat\.json is not a saved chat.*{message}"):
        PLAIN.load_chat(path)


@pytest.mark.parametrize(
    ("field", "value"),
    [("question", "Edited."), ("answer", "Edited."), ("token_ids", [*b"Other"]), ("token_ids", [10**6])],
)
@pytest.mark.parametrize("fresh", [False, True])
def test_an_edited_text_is_what_the_model_reads(
    tmp_path: Path, field: str, value: Any, fresh: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A turn has the tokens of the text that its file shows, and KV of others is not used. `~` is the home folder."""
    monkeypatch.setenv("HOME", str(tmp_path))
    made = engine()
    chat = saved(made, Path("~/chat.json"), "One?", "Two?")
    shown = edit(tmp_path / "chat.json", {field: value})["turns"][0]
    loaded = (engine() if fresh else made).load_chat("~/chat.json")

    edited, second = loaded.turns
    assert (edited.question, edited.answer) == (shown["question"], shown["answer"])
    assert edited.token_ids == (chat.turns[0].token_ids if field == "question" else TOKENIZER.tokenize(shown["answer"]))
    assert second == chat.turns[1]
    reused = check_as_plain(made, loaded, "And?", max_new_tokens=2).usage.num_history_tokens
    assert reused < chat.say("And?", max_new_tokens=2, **GREEDY).usage.num_history_tokens
