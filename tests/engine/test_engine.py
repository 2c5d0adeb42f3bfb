"""The engine's public interface."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from promptcache.answers import AnswerReader
from promptcache.decode.completion import Completion, FinishReason, KVSource
from promptcache.decode.stream import Stream, _leave
from promptcache.diagnostics import (
    Cancelled,
    ContextLengthExceeded,
    InvalidGeneration,
    ModelNotFound,
    PromptError,
    SchemaError,
    UnknownSchema,
    UnsupportedModel,
)
from promptcache.engine import Engine
from promptcache.kv import KV, MemoryStore, Recipe
from promptcache.language import Prompt, Role, check_schema, parse_schema
from promptcache.layout import Level
from promptcache.testing.byte_tokenizer import ByteTokenizer
from promptcache.testing.tiny_model import CONTEXT_LENGTH, tiny_model
from promptcache.tokenizer import DEMO_FOLDER, HubTokenizer

SCHEMA = """<schema name="travel">You plan trips.
<module name="plan">Stay <parameter name="days" length="8" placeholder="n days"/>.</module>
<union name="city"><module name="miami">Miami has beaches.</module><module name="paris">Paris has soup.</module></union>
</schema>"""
PROMPT = '<prompt schema="travel"><plan days="nine"/><paris/>Where to?</prompt>'
GREEDY = {"do_sample": False, "max_new_tokens": 8}


class CountingStore(MemoryStore):
    """A store that counts puts."""

    puts = 0

    def put(self, recipe: Recipe, keys: torch.Tensor, values: torch.Tensor, *, persist: bool = True) -> KV:
        """Put and count."""
        self.puts += 1
        return super().put(recipe, keys, values, persist=persist)


@pytest.fixture
def engine() -> Iterator[Engine]:
    """An engine with the travel schema, nothing encoded yet."""
    made = Engine(tiny_model(), ByteTokenizer())
    made.add_schema(SCHEMA)
    return made


def test_first_request_encodes_and_the_next_reuses(engine: Engine) -> None:
    """A second request finds everything that the first one encoded, and gets the same answer."""
    first = engine.generate(PROMPT, **GREEDY)
    second = engine.generate(PROMPT, **GREEDY)

    assert {usage.source for usage in first.usage.modules} == {KVSource.MISS}
    assert {usage.source for usage in second.usage.modules} == {KVSource.HIT, KVSource.HISTORY}
    assert (first.usage.num_encoded_tokens > 0, second.usage.num_encoded_tokens) == (True, 0)
    assert first.token_ids == second.token_ids


def test_usage_accounts_for_every_prompt_token(engine: Engine) -> None:
    """Reused tokens are those of the modules; new ones are the argument with its space, the token behind it, the text."""
    usage = engine.generate(PROMPT, **GREEDY).usage

    assert usage.num_reused_tokens == sum(module.num_tokens for module in usage.modules)
    assert usage.num_new_tokens == len(" nine") + len(".") + len("Where to?")
    assert usage.num_repaired_tokens == len(".")
    assert [module.module for module in usage.modules] == ["", "plan", "paris"]


def test_timing_adds_up(engine: Engine) -> None:
    """Every step takes some time, and the time to first token is the sum of the steps before decoding."""
    timing = engine.generate(PROMPT, **GREEDY).timing

    phases = (timing.plan_s, timing.refine_s, timing.fetch_s, timing.link_s, timing.prefill_s)
    assert all(phase > 0 for phase in (*phases, timing.decode_s))
    phases = (*phases, timing.wait_s, timing.encode_s)
    assert timing.ttft_s == pytest.approx(sum(phases))


def test_warm_encodes_everything_once(engine: Engine) -> None:
    """After `warm` no request encodes anything, and warming again has nothing to do."""
    (report,) = engine.warm("travel", pairs=True)
    (again,) = engine.warm(pairs=True)

    assert report.num_encoded == report.num_encodings > 0
    assert report.nbytes == engine.store.nbytes()
    assert again.num_encoded == 0
    assert engine.generate(PROMPT, **GREEDY).usage.num_encoded_tokens == 0


def test_shared_text_is_encoded_once_for_all_schemas() -> None:
    """Two schemas with the same text in the same place share its encoding."""
    store = CountingStore(tiny_model().shape)
    engine = Engine(tiny_model(), ByteTokenizer(), store=store)
    engine.add_schema(SCHEMA)
    engine.warm(pairs=True)
    before = store.puts

    engine.add_schema(SCHEMA.replace('name="travel"', 'name="other"').replace("soup", "wine"))
    engine.warm(pairs=True)

    assert store.puts == before + 2  # alone, and behind the plan


def test_replacing_a_schema_encodes_only_what_changed(engine: Engine) -> None:
    """A replaced schema keeps the KV of unchanged text."""
    engine.warm(pairs=True)

    engine.add_schema(SCHEMA.replace("soup", "wine"))
    (report,) = engine.warm(pairs=True)

    assert report.num_encoded == 2  # alone, and behind the plan


def test_a_request_keeps_the_schema_it_started_with(engine: Engine) -> None:
    """Replacing a schema while a request is running changes nothing for that request."""
    expected = engine.generate(PROMPT, **GREEDY).token_ids
    replaced = threading.Event()

    def replace(input_ids: torch.Tensor, scores: object, **kwargs: object) -> torch.Tensor:
        if not replaced.is_set():
            engine.add_schema(SCHEMA.replace("soup", "wine").replace("You plan", "He plans"))
            engine.warm()
            replaced.set()
        return torch.zeros(1, dtype=torch.bool)

    answer = engine.generate(PROMPT, stopping_criteria=[replace], **GREEDY)

    assert replaced.is_set()
    assert answer.token_ids == expected


def test_a_schema_that_fails_leaves_the_old_one(engine: Engine) -> None:
    """After an error the engine serves the old schema."""
    with pytest.raises(SchemaError):
        engine.add_schema('<schema name="travel"><module name="a"/><module name="a"/></schema>')

    assert engine.generate(PROMPT, **GREEDY).level is Level.MODULAR


def test_prompts_may_be_text_path_or_built(engine: Engine, tmp_path: Path) -> None:
    """XML text, a file and the builder give the same prompt."""
    path = tmp_path / "prompt.xml"
    path.write_text(PROMPT, encoding="utf-8")
    built = Prompt("travel").use("plan", days="nine").use("paris").text("Where to?")

    answers = {engine.generate(each, **GREEDY).token_ids for each in (PROMPT, path, str(path), built)}

    assert len(answers) == 1


def test_schemas_may_be_text_path_or_tree(tmp_path: Path) -> None:
    """XML text, a file, a parsed tree and a schema of another engine add the same schema."""
    path = tmp_path / "travel.xml"
    path.write_text(SCHEMA, encoding="utf-8")
    answers = set()
    for source in (SCHEMA, path, str(path), parse_schema(SCHEMA), check_schema(parse_schema(SCHEMA))):
        engine = Engine(tiny_model(), ByteTokenizer())
        engine.add_schema(source)
        answers.add(engine.generate(PROMPT, **GREEDY).token_ids)

    assert len(answers) == 1


def test_logits_equal_the_reference(engine: Engine) -> None:
    """`logits` equals `reference`."""
    cached, reference = engine.logits(PROMPT), engine.reference(PROMPT)

    assert (cached - reference).abs().max() / reference.abs().max() < 1e-10


def test_concurrent_requests_answer_like_single_ones(engine: Engine) -> None:
    """Concurrent requests on a cold store get the answers of single ones."""
    prompts = [
        f'<prompt schema="travel"><plan days="{days}"/><{city}/>Go?</prompt>'
        for days in "1234"
        for city in ("miami", "paris")
    ]
    expected = Engine(tiny_model(), ByteTokenizer())
    expected.add_schema(SCHEMA)

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda prompt: engine.generate(prompt, **GREEDY).token_ids, prompts))

    assert answers == [expected.generate(prompt, **GREEDY).token_ids for prompt in prompts]


def test_concurrent_requests_encode_once() -> None:
    """Each missing encoding is computed once, with any number of threads."""
    store = CountingStore(tiny_model().shape)
    engine = Engine(tiny_model(), ByteTokenizer(), store=store)
    engine.add_schema(SCHEMA)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: engine.generate(PROMPT, **GREEDY), range(8)))

    used = [part.encoding for part in engine.plan(PROMPT).tokens.parts]
    assert store.puts == len({*used, *(part.encoding for each in used for part in each.context)})


def test_stream_gives_the_text_of_generate(engine: Engine) -> None:
    """The pieces of a stream join to the text; none ends inside a character; the completion follows."""
    stream = engine.stream(PROMPT, max_new_tokens=40, do_sample=False)

    pieces = list(stream)

    assert stream.completion is not None
    assert "".join(pieces) == stream.completion.text == engine.generate(PROMPT, max_new_tokens=40, do_sample=False).text


def test_pieces_are_the_text_where_tokens_are_words(engine: Engine) -> None:
    """The pieces include spaces that a tokenizer writes between tokens."""
    answer = engine.generate(PROMPT, **GREEDY)

    def words(token_ids: Sequence[int]) -> str:
        return " ".join(str(token_id) for token_id in token_ids if token_id != answer.token_ids[1])

    def produce(on_token: Callable[[int], object], _: Callable[[], bool]) -> Completion:
        for token_id in answer.token_ids:
            on_token(token_id)
        return replace(answer, text=words(answer.token_ids))

    pieces = list(Stream(produce, words, AnswerReader().split()))

    assert "".join(pieces) == words(answer.token_ids)
    assert len(pieces) == len(words(answer.token_ids).split())


def test_threads_that_read_one_stream_all_come_to_its_end(engine: Engine) -> None:
    """Several readers share the pieces, and each of them ends."""
    stream = engine.stream(PROMPT, max_new_tokens=20, do_sample=False)
    pieces: list[str] = []
    readers = [threading.Thread(target=lambda: pieces.extend(stream), daemon=True) for _ in range(3)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join(30)

    assert not any(reader.is_alive() for reader in readers)
    assert stream.completion is not None
    assert sorted("".join(pieces)) == sorted(stream.completion.text)


def test_closing_a_stream_stops_generation(engine: Engine) -> None:
    """Closing a stream stops generation."""
    with engine.stream(PROMPT, max_new_tokens=3_000, do_sample=False) as stream:
        next(stream)

    assert stream.completion is None
    assert not stream_threads()


def stream_threads() -> list[threading.Thread]:
    """Threads that generate for a stream."""
    return [thread for thread in threading.enumerate() if thread.name == "promptcache-stream"]


def test_dropping_a_stream_stops_generation(engine: Engine) -> None:
    """Deleting an unread stream stops generation."""
    stream = engine.stream(PROMPT, max_new_tokens=3_000, do_sample=False)
    next(stream)
    (thread,) = stream_threads()

    del stream
    gc.collect()
    thread.join(20)

    assert not thread.is_alive()


def test_the_end_of_the_program_ends_a_stream(engine: Engine) -> None:
    """At exit the program stops the thread of a running stream, which would abort it otherwise."""

    def at_exit() -> list[weakref.finalize]:  # type: ignore[type-arg] # of anything
        return [each for each in weakref.finalize._registry if each.atexit and each.peek()[1] is _leave]

    stream = engine.stream(PROMPT, max_new_tokens=3_000, do_sample=False)
    next(stream)
    (thread,) = stream_threads()
    (leave,) = at_exit()

    leave()

    assert not thread.is_alive()
    with pytest.raises(Cancelled):
        list(stream)
    list(engine.stream(PROMPT, **GREEDY))
    assert at_exit() == []


def test_a_stream_that_failed_or_was_closed_is_over(engine: Engine) -> None:
    """Iteration ends after an error and after `close`."""

    def fail(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        raise ValueError("mine")

    failing = engine.stream(PROMPT, logits_processor=[fail], **GREEDY)
    with pytest.raises(ValueError, match="mine"):
        next(failing)
    closed = engine.stream(PROMPT, **GREEDY)
    closed.close()

    assert (list(failing), list(closed)) == ([], [])
    assert closed.completion is None


def test_a_stream_keeps_the_schema_it_started_with(engine: Engine) -> None:
    """A prompt is planned by the call, so that a schema replaced later has no effect on the stream."""
    expected = engine.generate(PROMPT, **GREEDY).token_ids
    replaced = threading.Event()

    def wait(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        replaced.wait(20)
        return scores

    stream = engine.stream(PROMPT, logits_processor=[wait], **GREEDY)
    engine.add_schema('<schema name="travel"><module name="other">Nothing else.</module></schema>')
    replaced.set()
    list(stream)

    assert stream.completion is not None
    assert stream.completion.token_ids == expected


def test_a_stream_has_one_streamer(engine: Engine) -> None:
    """A second streamer is refused."""
    with pytest.raises(InvalidGeneration, match="streamer"):
        engine.stream(PROMPT, streamer=object())


def test_stream_raises_before_the_first_piece(engine: Engine) -> None:
    """A fault in the prompt is raised by the call, not by the iteration."""
    with pytest.raises(PromptError):
        engine.stream(PROMPT.replace("paris", "rome"))


def test_several_sequences(engine: Engine) -> None:
    """Each is sampled, and usage counts the tokens of all."""
    sampled = engine.generate(PROMPT, do_sample=True, num_return_sequences=3, max_new_tokens=8, eos_token_id=[])

    assert len(sampled.alternatives) == 2
    assert sampled.usage.num_generated_tokens == 24


@pytest.mark.filterwarnings("ignore:.*")  # transformers' assisted decoding warns of its own arguments
def test_assisted_decoding_over_a_linked_prompt_gives_the_greedy_answer(engine: Engine) -> None:
    """Assisted decoding removes rejected candidates: prompt lookup and an assistant give the greedy answer."""
    greedy = engine.generate(PROMPT, max_new_tokens=30, do_sample=False).token_ids

    for option in ({"prompt_lookup_num_tokens": 3}, {"assistant_model": tiny_model(seed=1).hf}):
        linked = engine.link(PROMPT)
        made = engine.model.hf.generate(
            **linked, max_new_tokens=30, do_sample=False, eos_token_id=[*engine.end_ids], **option
        )
        assert tuple(made[0, linked["input_ids"].shape[1] :].tolist()) == greedy


def test_finish_reason(engine: Engine) -> None:
    """An answer ends by length, by an end token or by a stopping criterion."""

    def stop(input_ids: torch.Tensor, scores: object, **kwargs: object) -> torch.Tensor:
        return torch.ones(1, dtype=torch.bool)

    by_length = engine.generate(PROMPT, **GREEDY)
    stopped = engine.generate(PROMPT, stopping_criteria=[stop], **GREEDY)
    ended = engine.generate(PROMPT, eos_token_id=by_length.token_ids[0], **GREEDY)
    last = engine.generate(PROMPT, eos_token_id=by_length.token_ids[-1], **GREEDY)

    assert last.finish_reason is FinishReason.STOP
    assert by_length.finish_reason is FinishReason.LENGTH
    assert stopped.finish_reason is ended.finish_reason is FinishReason.STOP
    assert len(stopped.token_ids) == len(ended.token_ids) == 1


def test_unknown_schema_is_suggested(engine: Engine) -> None:
    """An unknown schema is named with the nearest known one."""
    with pytest.raises(UnknownSchema, match="did you mean 'travel'"):
        engine.generate('<prompt schema="travle"><paris/></prompt>')


@pytest.mark.parametrize("option", ["input_ids", "position_ids", "past_key_values", "max_length", "prefill_chunk_size"])
def test_options_that_are_ours_are_refused(engine: Engine, option: str) -> None:
    """Options that the prompt decides are refused by name."""
    with pytest.raises(InvalidGeneration, match=option):
        engine.generate(PROMPT, **{option: 1})


def test_context_length_is_checked_before_work(engine: Engine) -> None:
    """Too many new tokens, or a schema too long for the model, are refused with both numbers before any work."""
    with pytest.raises(ContextLengthExceeded, match=str(CONTEXT_LENGTH)):
        engine.generate(PROMPT, max_new_tokens=CONTEXT_LENGTH)
    with pytest.raises(SchemaError, match=str(CONTEXT_LENGTH)):
        engine.add_schema(f'<schema name="long"><module name="a">{"x" * 5_000}</module></schema>')

    assert list(engine.store.keys()) == []


def test_missing_model_folder(tmp_path: Path) -> None:
    """A missing folder, and one without a model, are refused with the fix."""
    with pytest.raises(ModelNotFound, match="does not exist"):
        Engine.from_pretrained(tmp_path / "nothing")
    with pytest.raises(ModelNotFound, match=r"no config\.json"):
        Engine.from_pretrained(tmp_path)


def test_a_folder_can_be_named_from_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`~` is the home folder, for checking and for loading a model folder."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "model").symlink_to(DEMO_FOLDER)

    assert Engine.from_pretrained("~/model").fingerprint == Engine.from_pretrained("demo").fingerprint
    with pytest.raises(ModelNotFound, match=f"'{tmp_path}/nothing' does not exist"):
        Engine.from_pretrained("~/nothing")


def test_folder_without_tokenizer(tmp_path: Path) -> None:
    """A model folder without a tokenizer is refused."""
    (tmp_path / "config.json").write_text('{"model_type": "llama"}', encoding="utf-8")

    with pytest.raises(ModelNotFound, match="no tokenizer"):
        Engine.from_pretrained(tmp_path)


def test_unsupported_kind_of_model(tmp_path: Path) -> None:
    """An encoder-decoder model is refused by name."""
    (tmp_path / "config.json").write_text('{"model_type": "t5"}', encoding="utf-8")
    (tmp_path / "tokenizer.json").write_text("{}", encoding="utf-8")

    with pytest.raises(UnsupportedModel, match="t5"):
        Engine.from_pretrained(tmp_path)


@pytest.fixture(scope="module")
def demo() -> Engine:
    """The model that ships with the package."""
    made = Engine.from_pretrained("demo")
    made.add_schema(SCHEMA)
    return made


def test_stop_strings_end_an_answer(demo: Engine) -> None:
    """`stop_strings` works as in transformers, without passing a tokenizer."""
    whole = demo.generate(PROMPT, max_new_tokens=12, do_sample=False, eos_token_id=[])
    mark = whole.text[0]

    stopped = demo.generate(PROMPT, max_new_tokens=12, do_sample=False, eos_token_id=[], stop_strings=[mark])

    (batched,) = demo.generate_batch([PROMPT], max_new_tokens=12, do_sample=False, eos_token_id=[], stop_strings=[mark])

    assert mark in stopped.text
    assert batched.token_ids == stopped.token_ids
    assert len(stopped.token_ids) < len(whole.token_ids)
    assert stopped.finish_reason is FinishReason.STOP


def test_a_folder_and_a_loaded_pair_are_the_same(demo: Engine) -> None:
    """Tokens, headers and footers from a model folder equal those of the loaded tokenizer."""
    folder = HubTokenizer.from_folder(DEMO_FOLDER)

    for text in ("Where to go?", "  two\n\nlines ", "<|end|> ünïcode 🙂"):
        assert folder.tokenize(text) == demo.tokenizer.tokenize(text)
    chat = [{"role": str(role), "content": "text"} for role in (Role.SYSTEM, Role.USER, Role.ASSISTANT)]
    assert len({each.render_chat(chat, generation_prompt=True) for each in (folder, demo.tokenizer)}) == 1
    assert (folder.bos_ids, set(folder.eos_ids)) == (demo.tokenizer.bos_ids, set(demo.tokenizer.eos_ids))
