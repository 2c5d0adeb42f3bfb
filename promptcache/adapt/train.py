"""The training: self-distillation of a LoRA adapter, from plain prefill to requests with modules.

The teacher is the model without the adapter, which answers after plain prefill. The student is the same model with the
adapter, and its modules are encoded apart. A share of the lessons has plain prefill on both sides, so that plain
answers stay as they are.
"""

from __future__ import annotations

import hashlib
import math
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from random import Random
from shutil import rmtree
from tempfile import mkdtemp
from typing import Any

import torch

from promptcache.adapt.checkpoint import Checkpoint, read_checkpoint
from promptcache.adapt.lessons import Lesson, Lessons
from promptcache.adapt.passes import (
    TaughtAnswer,
    divergences,
    hidden_distances,
    plain_predictions,
    student_predictions,
    teach,
)
from promptcache.adapt.report import AdaptReport, HeldOutFigures
from promptcache.adapt.sources import LessonSource, SchemaPrompts, SyntheticSource, TextPrompts
from promptcache.atomic import publish
from promptcache.bench.harness import Progress, silent
from promptcache.diagnostics import InvalidValue, Kind, NotFinite, UnsupportedModel, first_line, millinats_text, whole
from promptcache.engine import Engine
from promptcache.language import CheckedSchema, print_schema
from promptcache.runtime import DTYPES, Model, without_peft_warnings
from promptcache.testing.subject import SchemaSource, read_schema

LESSONS_PER_STEP = 2
_STEPS_PER_BLOCK = 4  # the teacher answers the lessons of so many steps at once
_BATCH = 4  # lessons that the teacher answers in one forward pass
_WARMUP_STEPS = 10
_PLAIN_SHARE = 0.2
_SAMPLED_SHARE = 0.25
_HIDDEN_WEIGHT = 1.0
_QUESTION_WEIGHT = 0.2
_MAX_NORM = 1.0
_NUM_RECENT = 40

_POSITIVE = Kind("a number above 0", lambda value: isinstance(value, int | float) and 0 < value < math.inf)
_SECONDS = Kind("a number of seconds", lambda value: isinstance(value, int | float) and 0 <= value < math.inf)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptSettings:
    """Settings of a training.

    Attributes:
        steps: Steps in all, of two lessons each; None if `minutes` is given.
        minutes: Time of the training in all, without validation; None if `steps` is given.
        rank: Rank of the LoRA matrices.
        learning_rate: The highest learning rate. It rises for 10 steps and falls to 0 like a cosine.
        seed: Seed of the lessons and of the adapter's first weights.
        max_tokens: Limit of the tokens of one forward pass: prompt, answer, and the contexts of the modules.
        max_new_tokens: Limit of the tokens of an answer.
        num_held_out: Number of prompts of the validation.
        checkpoint_s: Least time between two checkpoints, in seconds.
    """

    steps: int | None = None
    minutes: float | None = None
    rank: int = 16
    learning_rate: float = 3e-4
    seed: int = 0
    max_tokens: int = 2048
    max_new_tokens: int = 24
    num_held_out: int = 24
    checkpoint_s: float = 120.0

    def check(self) -> None:
        """Refuse settings that are not allowed.

        Raises:
            InvalidValue: Names the setting.
        """
        (whole(1, unit="steps") | None).check("steps", self.steps, InvalidValue)
        (_POSITIVE | None).check("minutes", self.minutes, InvalidValue)
        if (self.steps is None) == (self.minutes is None):
            raise InvalidValue("a training needs either steps or minutes")
        for name in ("rank", "max_tokens", "max_new_tokens", "num_held_out"):
            whole(1).check(name, getattr(self, name), InvalidValue)
        whole(0).check("seed", self.seed, InvalidValue)
        _POSITIVE.check("learning_rate", self.learning_rate, InvalidValue)
        _SECONDS.check("checkpoint_s", self.checkpoint_s, InvalidValue)

    def share_done(self, num_steps: int, seconds: float) -> float:
        """Return the share of the training that is done, at most 1."""
        return min(1.0, num_steps / self.steps if self.steps is not None else seconds / (60 * (self.minutes or 1)))


def adapt_model(
    engine: Engine,
    out: str | Path,
    *,
    schemas: Sequence[SchemaSource] = (),
    texts: Sequence[str] = (),
    settings: AdaptSettings,
    progress: Progress = silent,
) -> AdaptReport:
    """Train a LoRA adapter with which answers from modules are nearer to those after plain prefill.

    The adapter is for all schemas, and fits best to prompts like those that it was trained on. The engine gets no
    schema and no KV, and its model is as before in the end.

    Args:
        engine: Its model, tokenizer and default settings are used. Its layers must not be packed (`pack=False`).
        out: Folder of the adapter. A training that is there is continued, if all settings but `steps`, `minutes` and
            `checkpoint_s` are the same.
        schemas: Schemas to train for, as paths, XML text, or schemas. They need Hypothesis.
        texts: Texts whose paragraphs are used as modules. Without schemas, synthetic documents are used as well.
        progress: Called before each step.

    Raises:
        InvalidValue: A setting is not allowed; the folder has something else, or a training with other settings; or no
            prompt can be learned from.
        SchemaError: A schema is not valid, or does not fit the model.
        UnsupportedModel: The model cannot be trained, or peft is not installed.
        NotFinite: The loss is not finite.
    """
    settings.check()
    folder = Path(out)
    checkpoint = read_checkpoint(folder)
    check_trainable(engine.model)
    checked = [read_schema(each) for each in schemas]
    identity = _identity(engine, checked, texts, settings)
    if checkpoint is not None:
        checkpoint.check(identity, folder)
    lessons = Lessons(
        engine=engine,
        sources=_sources(engine, checked, texts, settings.seed),
        seed=settings.seed,
        max_tokens=settings.max_tokens,
        max_new_tokens=settings.max_new_tokens,
    )
    folder.mkdir(parents=True, exist_ok=True)
    with _with_adapter(engine.model, settings) as adapter:
        training = _Training(engine, adapter, lessons, settings, progress)
        return training.run(folder, checkpoint, identity)


def check_trainable(model: Model) -> None:
    """Refuse a model that has no gradients.

    Raises:
        UnsupportedModel: Gives the reason and the fix.
    """
    name = model.facts.name
    if find_spec("peft") is None:
        raise UnsupportedModel("training needs peft: pip install 'promptcache[adapt]'")
    if getattr(model.hf, "is_quantized", False) or not all(each.dtype in DTYPES for each in model.hf.parameters()):
        raise UnsupportedModel(f"{name} is quantized; train an adapter for the model in its full precision")
    if model.is_packed:
        raise UnsupportedModel(f"{name} has packed layers, which have no gradients; load it with pack=False")
    if getattr(model.hf, "peft_config", None):
        raise UnsupportedModel(f"{name} has adapters; load the model without them, or merge them into its weights")


def _identity(
    engine: Engine, schemas: Sequence[CheckedSchema], texts: Sequence[str], settings: AdaptSettings
) -> Mapping[str, object]:
    """Return what a continued training must have in common with its checkpoint."""
    free = ("steps", "minutes", "checkpoint_s")
    own = {name: value for name, value in asdict(settings).items() if name not in free}
    documents = hashlib.sha256()
    for text in (*(print_schema(each.source) for each in schemas), *texts):
        documents.update(f"{len(text)} {text}".encode("utf-8", "replace"))
    defaults = f"{engine.repair} {engine.positions}"
    return {"model": engine.fingerprint, "schemas or texts": documents.hexdigest(), "engine": defaults, **own}


def _sources(
    engine: Engine, schemas: Sequence[CheckedSchema], texts: Sequence[str], seed: int
) -> Sequence[LessonSource]:
    sources: list[LessonSource] = [SchemaPrompts(engine, each, seed) for each in schemas]
    if texts:
        sources.append(TextPrompts(engine, texts))
    if not schemas:
        sources.append(SyntheticSource(engine))
    return sources


@contextmanager
def _with_adapter(model: Model, settings: AdaptSettings) -> Iterator[Any]:
    """Give a model a new adapter, in float32, and take it away in the end.

    Raises:
        UnsupportedModel: The model has no layers for it.
    """
    from peft import LoraConfig, get_peft_model

    flags = [(weight, weight.requires_grad) for weight in model.hf.parameters()]
    rank = settings.rank
    config = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear", task_type="CAUSAL_LM")
    with torch.random.fork_rng():
        torch.manual_seed(settings.seed)
        try:
            with without_peft_warnings():
                adapter: Any = get_peft_model(model.hf, config)
        except ValueError as error:
            raise UnsupportedModel(f"{model.facts.name} takes no LoRA adapter: {first_line(error)}") from error
    adapter.eval()  # no dropout anywhere
    try:
        yield adapter
    finally:
        adapter.unload()
        for weight, needs_grad in flags:
            weight.requires_grad_(needs_grad)


class _Training:
    def __init__(
        self, engine: Engine, adapter: Any, lessons: Lessons, settings: AdaptSettings, progress: Progress
    ) -> None:
        self._engine = engine
        self._model = engine.model
        self._adapter = adapter
        self._lessons = lessons
        self._settings = settings
        self._progress = progress
        self._weights = [each for each in adapter.parameters() if each.requires_grad]
        self._optimizer = torch.optim.AdamW(
            self._weights, lr=settings.learning_rate, betas=(0.9, 0.99), weight_decay=0.0
        )
        self._block: tuple[int, list[tuple[Lesson, TaughtAnswer]]] | None = None
        self._recent: deque[float] = deque(maxlen=_NUM_RECENT)
        self._num_steps = 0
        self._seconds = 0.0

    def run(self, folder: Path, checkpoint: Checkpoint | None, identity: Mapping[str, object]) -> AdaptReport:
        from peft import get_peft_model_state_dict, set_peft_model_state_dict

        if checkpoint is not None:
            set_peft_model_state_dict(self._adapter, dict(checkpoint.adapter))
            self._optimizer.load_state_dict(dict(checkpoint.optimizer))
            self._num_steps, self._seconds = checkpoint.num_steps, checkpoint.seconds
        held_out = self._held_out()
        before = self._figures(held_out) if checkpoint is None else HeldOutFigures(**checkpoint.before)

        def save() -> None:
            Checkpoint(
                identity=identity,
                num_steps=self._num_steps,
                seconds=self._seconds,
                before=asdict(before),
                adapter=get_peft_model_state_dict(self._adapter),
                optimizer=self._optimizer.state_dict(),
            ).write(folder)

        save()
        self._train(save)
        save()
        report = AdaptReport(
            model=self._model.facts.name,
            rank=self._settings.rank,
            learning_rate=self._settings.learning_rate,
            seed=self._settings.seed,
            num_steps=self._num_steps,
            num_lessons=self._num_steps * LESSONS_PER_STEP,
            seconds=self._seconds,
            before=before,
            after=self._figures(held_out),
        )
        save_adapter(self._adapter, folder)
        report.write(folder)
        return report

    def _train(self, save: Callable[[], None]) -> None:
        settings, saved = self._settings, time.monotonic()
        while settings.share_done(self._num_steps, self._seconds) < 1:
            self._show()
            start = time.monotonic()
            self._step()
            self._num_steps += 1
            self._seconds += time.monotonic() - start
            if time.monotonic() - saved >= settings.checkpoint_s:
                save()
                saved = time.monotonic()

    def _show(self) -> None:
        settings, share = self._settings, self._settings.share_done(self._num_steps, self._seconds)
        words = [f"training, step {self._num_steps + 1}"]
        if self._recent:
            words.append(f"KL {millinats_text(statistics.fmean(self._recent))} millinats")
        if share:
            words.append(f"{_duration(self._seconds / share - self._seconds)} left")
        if settings.steps is not None:
            self._progress(", ".join(words), self._num_steps, settings.steps)
        else:
            self._progress(", ".join(words), int(self._seconds), int(60 * (settings.minutes or 0)))

    def _step(self) -> None:
        settings = self._settings
        warmup = min(1.0, (self._num_steps + 1) / _WARMUP_STEPS)
        fall = 0.5 + 0.5 * math.cos(math.pi * settings.share_done(self._num_steps, self._seconds))
        for group in self._optimizer.param_groups:
            group["lr"] = settings.learning_rate * warmup * fall
        for index in range(LESSONS_PER_STEP):
            number = self._num_steps * LESSONS_PER_STEP + index
            lesson, target = self._taught(number)
            is_plain = self._chance("form", number).random() < _PLAIN_SHARE
            predict = plain_predictions if is_plain else student_predictions
            found = predict(self._model, lesson, target.answer_ids)
            distance = divergences(found, target.predictions)
            weights = torch.ones_like(distance)
            weights[: lesson.num_shared - 1] = _QUESTION_WEIGHT
            each = distance + _HIDDEN_WEIGHT * hidden_distances(found, target.predictions)
            loss = (each * weights).sum() / weights.sum()
            if not torch.isfinite(loss):
                raise NotFinite(
                    f"the loss of step {self._num_steps + 1} is not finite; start again with a lower learning rate"
                )
            (loss / LESSONS_PER_STEP).backward()  # type: ignore[no-untyped-call] # torch does not annotate it
            if not is_plain:
                self._recent.append(float(distance[lesson.num_shared - 1 :].detach().mean()))
        torch.nn.utils.clip_grad_norm_(self._weights, _MAX_NORM)
        self._optimizer.step()
        self._optimizer.zero_grad()

    def _taught(self, number: int) -> tuple[Lesson, TaughtAnswer]:
        """Return a lesson with its target. The lessons of several steps are answered together."""
        size = LESSONS_PER_STEP * _STEPS_PER_BLOCK
        block, index = divmod(number, size)
        if self._block is None or self._block[0] != block:
            numbers = range(block * size, (block + 1) * size)
            lessons = [self._lessons.lesson(each) for each in numbers]
            sampled = [self._chance("answer", each).random() < _SAMPLED_SHARE for each in numbers]
            generator = torch.Generator().manual_seed(self._chance("sampling", block).getrandbits(63))
            targets = self._targets(lessons, sampled, generator)
            self._block = block, [*zip(lessons, targets, strict=True)]
        return self._block[1][index]

    def _chance(self, purpose: str, number: int) -> Random:
        return Random(f"{purpose} {self._settings.seed} {number}")

    def _targets(
        self, lessons: Sequence[Lesson], sampled: Sequence[bool] | None = None, generator: torch.Generator | None = None
    ) -> list[TaughtAnswer]:
        """Return the targets of lessons. Lessons of similar length are answered together, for less padding."""
        found: dict[int, TaughtAnswer] = {}
        by_length = sorted(range(len(lessons)), key=lambda index: len(lessons[index].whole_ids))
        with self._without_adapter():
            for start in range(0, len(lessons), _BATCH):
                batch = by_length[start : start + _BATCH]
                targets = teach(
                    self._model,
                    [lessons[index] for index in batch],
                    self._engine.end_ids,
                    self._settings.max_new_tokens,
                    [sampled is not None and sampled[index] for index in batch],
                    generator,
                )
                found.update(zip(batch, targets, strict=True))
        return [found[index] for index in range(len(lessons))]

    def _without_adapter(self) -> AbstractContextManager[None]:
        context: AbstractContextManager[None] = self._adapter.disable_adapter()
        return context

    def _held_out(self) -> list[tuple[Lesson, TaughtAnswer]]:
        size, count = LESSONS_PER_STEP * _STEPS_PER_BLOCK, self._settings.num_held_out
        found: list[tuple[Lesson, TaughtAnswer]] = []
        for start in range(0, count, size):
            self._progress("answering held-out prompts", start, count)
            numbers = range(start, min(count, start + size))
            lessons = [self._lessons.lesson(number, held_out=True) for number in numbers]
            found += zip(lessons, self._targets(lessons), strict=True)
        return found

    @torch.no_grad()
    def _figures(self, held_out: Sequence[tuple[Lesson, TaughtAnswer]]) -> HeldOutFigures:
        modular, agreeing, plain = list[float](), list[float](), list[float]()
        for number, (lesson, target) in enumerate(held_out):
            self._progress("measuring held-out prompts", number, len(held_out))
            answer = slice(lesson.num_shared - 1, None)
            found = student_predictions(self._model, lesson, target.answer_ids)
            modular.append(float(divergences(found, target.predictions)[answer].mean()))
            same = found.logits.argmax(-1) == target.predictions.logits.argmax(-1)
            agreeing.append(float(same[answer].double().mean()))
            found = plain_predictions(self._model, lesson, target.answer_ids)
            plain.append(float(divergences(found, target.predictions)[answer].mean()))
        return HeldOutFigures(
            divergence=max(0.0, statistics.fmean(modular)),
            agreement=statistics.fmean(agreeing),
            drift=max(0.0, statistics.fmean(plain)),
            num_prompts=len(held_out),
        )


def save_adapter(adapter: Any, folder: Path) -> None:
    """Write an adapter in the form of peft. Each file is replaced as a whole."""
    scratch = Path(mkdtemp(prefix=".adapter.", suffix=".tmp", dir=folder))
    try:
        adapter.save_pretrained(scratch, save_embedding_layers=False)
        for file in scratch.iterdir():
            publish(file, folder / file.name)
    finally:
        rmtree(scratch, ignore_errors=True)


def _duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    return (
        f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min" if minutes else "less than 1 min"
    )
