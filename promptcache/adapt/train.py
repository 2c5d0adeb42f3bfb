"""The training: an adapter learns to encode modules as they are after plain prefill.

The teacher is the model, which prefills a prompt as a whole. The student is the same model, and encodes modules apart
with the adapter. The loss is the distance of the student's keys and values from the teacher's, so no answers are
needed. The adapter takes part in no other tokens, so plain and exact answers stay as they are.
"""

from __future__ import annotations

import hashlib
import math
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from promptcache.adapt.checkpoint import Checkpoint, read_checkpoint
from promptcache.adapt.lessons import Lesson, Lessons
from promptcache.adapt.passes import (
    TaughtAnswer,
    divergences,
    kv_distances,
    modular_kv,
    modular_logits,
    plain_kv,
    teach,
)
from promptcache.adapt.report import AdaptReport, HeldOutFigures
from promptcache.adapt.sources import LessonSource, SchemaPrompts, SyntheticSource, TextPrompts
from promptcache.bench.harness import Progress, silent
from promptcache.diagnostics import InvalidValue, Kind, NotFinite, UnsupportedModel, whole
from promptcache.engine import Engine
from promptcache.language import CheckedSchema, ReadFiles, Sees, print_schema
from promptcache.runtime import (
    DTYPES,
    Model,
    adapted_layers,
    add_adapter,
    layers_to_adapt,
    remove_adapter,
    save_module_adapter,
)
from promptcache.testing.subject import SchemaSource, read_schema

LESSONS_PER_STEP = 2
_BATCH = 4  # held-out prompts that are answered in one forward pass
_WARMUP_STEPS = 10
_MAX_NORM = 1.0
_LEAST_SHARE = 1e-4
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
        max_new_tokens: Limit of the tokens of an answer to a held-out prompt.
        num_held_out: Number of prompts of the validation.
        checkpoint_s: Least time between two checkpoints, in seconds.
    """

    steps: int | None = None
    minutes: float | None = None
    rank: int = 16
    learning_rate: float = 1e-3
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
    """Train a LoRA adapter for modules, with which answers are nearer to those after plain prefill.

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
        UnsupportedModel: The model cannot be trained.
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
    with _with_adapter(engine.model, settings, for_pairs=_for_pairs(checked)):
        training = _Training(engine, lessons, settings, progress)
        return training.run(folder, checkpoint, identity)


def check_trainable(model: Model) -> None:
    """Refuse a model that has no gradients.

    Raises:
        UnsupportedModel: Gives the reason and the fix.
    """
    name = model.facts.name
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
    files = [ReadFiles.of(each.source) for each in schemas]
    read = [text for each in files for text in each.texts.values()]
    members = (f"{name} {each.text}" for file in files for own in file.members.values() for name, each in own.items())
    documents = hashlib.sha256()
    for text in (*(print_schema(each.source) for each in schemas), *read, *members, *texts):
        documents.update(f"{len(text)} {text}".encode("utf-8", "replace"))
    defaults = f"{engine.repair} {engine.positions}"
    return {"model": engine.fingerprint, "schemas or texts": documents.hexdigest(), "engine": defaults, **own}


def _sources(
    engine: Engine, schemas: Sequence[CheckedSchema], texts: Sequence[str], seed: int
) -> Sequence[LessonSource]:
    sources: list[LessonSource] = [SchemaPrompts(engine, each, seed) for each in schemas]
    if texts:
        sources.append(TextPrompts(engine, texts, Sees.PREVIOUS if _for_pairs(schemas) else Sees.STAND_INS))
    if not schemas:
        sources.append(SyntheticSource(engine))
    return sources


def _for_pairs(schemas: Sequence[CheckedSchema]) -> bool:
    """Whether an adapter for these schemas is also for modules behind the module before them.

    One that learned about them from synthetic documents made the answers to other texts worse (docs/fidelity.md).
    """
    return any(module.sees is Sees.PREVIOUS for schema in schemas for module in schema.modules.values())


@contextmanager
def _with_adapter(model: Model, settings: AdaptSettings, *, for_pairs: bool) -> Iterator[None]:
    """Give a model a new adapter, in float32, and take it away in the end.

    Raises:
        UnsupportedModel: The model has no layers for it.
    """
    names = layers_to_adapt(model.hf)
    if not names:
        raise UnsupportedModel(f"{model.facts.name} takes no adapter: it has no linear layers of torch")
    flags = [(weight, weight.requires_grad) for weight in model.hf.parameters()]
    generator = torch.Generator().manual_seed(settings.seed)
    weights = {}
    for name in names:
        linear = model.hf.get_submodule(name)
        down = torch.randn((settings.rank, linear.in_features), generator=generator) / math.sqrt(linear.in_features)
        up = torch.zeros((linear.out_features, settings.rank))
        weights[name] = down.to(model.device), up.to(model.device)
    for weight, _ in flags:
        weight.requires_grad_(False)
    try:
        add_adapter(model.hf, weights, for_pairs=for_pairs)
        for layer in adapted_layers(model.hf).values():
            layer.down.requires_grad_(True)
            layer.up.requires_grad_(True)
        yield
    finally:
        remove_adapter(model.hf)
        for weight, needs_grad in flags:
            weight.requires_grad_(needs_grad)


class _Training:
    def __init__(self, engine: Engine, lessons: Lessons, settings: AdaptSettings, progress: Progress) -> None:
        self._engine = engine
        self._model = engine.model
        self._lessons = lessons
        self._settings = settings
        self._progress = progress
        layers = adapted_layers(engine.model.hf).values()
        self._weights = [weight for layer in layers for weight in (layer.down, layer.up)]
        self._optimizer = torch.optim.AdamW(
            self._weights, lr=settings.learning_rate, betas=(0.9, 0.99), weight_decay=0.0
        )
        self._recent: deque[float] = deque(maxlen=_NUM_RECENT)
        self._num_steps = 0
        self._seconds = 0.0
        self._scale = torch.ones(())  # [L, 2], the distances of held-out prompts without the adapter

    def run(self, folder: Path, checkpoint: Checkpoint | None, identity: Mapping[str, object]) -> AdaptReport:
        if checkpoint is not None:
            with torch.no_grad():
                for weight, kept in zip(self._weights, checkpoint.adapter, strict=True):
                    weight.copy_(kept)
            self._optimizer.load_state_dict(dict(checkpoint.optimizer))
            self._num_steps, self._seconds = checkpoint.num_steps, checkpoint.seconds
        held_out = self._held_out()
        lessons = [lesson for lesson, _ in held_out]
        if checkpoint is None:
            self._scale = self._mean_distances(lessons)
            before = self._figures(held_out, self._scale)
        else:
            self._scale, before = checkpoint.scale, HeldOutFigures(**checkpoint.before)

        def save() -> None:
            Checkpoint(
                identity=identity,
                num_steps=self._num_steps,
                seconds=self._seconds,
                before=asdict(before),
                scale=self._scale,
                adapter=[weight.detach().clone() for weight in self._weights],
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
            after=self._figures(held_out, self._mean_distances(lessons)),
        )
        save_module_adapter(self._model.hf, folder)
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
            words.append(f"distance {statistics.fmean(self._recent):.2f}")
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
            request = self._lessons.lesson(self._num_steps * LESSONS_PER_STEP + index).tokens
            found = modular_kv(self._model, request)
            loss = self._relative(kv_distances(found, plain_kv(self._model, request)))
            if not torch.isfinite(loss):
                raise NotFinite(
                    f"the loss of step {self._num_steps + 1} is not finite; start again with a lower learning rate"
                )
            (loss / LESSONS_PER_STEP).backward()  # type: ignore[no-untyped-call] # torch does not annotate it
            self._recent.append(float(loss.detach()))
        torch.nn.utils.clip_grad_norm_(self._weights, _MAX_NORM)
        self._optimizer.step()
        self._optimizer.zero_grad()

    @torch.no_grad()
    def _mean_distances(self, lessons: Sequence[Lesson]) -> torch.Tensor:
        """Return the distances `[L, 2]` of keys and values from those of plain prefill, mean over prompts."""
        found = []
        for number, lesson in enumerate(lessons):
            self._progress("measuring held-out prompts", number, len(lessons))
            request = lesson.tokens
            found.append(kv_distances(modular_kv(self._model, request), plain_kv(self._model, request)))
        return torch.stack(found).mean(0)

    def _relative(self, distances: torch.Tensor) -> torch.Tensor:
        """Return distances `[L, 2]` relative to those without the adapter, mean over the layers that have any."""
        differs = self._scale > _LEAST_SHARE * self._scale.max()  # the first layer's KV depends on no other token
        return (distances[differs] / self._scale[differs]).mean()

    def _held_out(self) -> list[tuple[Lesson, TaughtAnswer]]:
        count = self._settings.num_held_out
        found: list[tuple[Lesson, TaughtAnswer]] = []
        for start in range(0, count, _BATCH):
            self._progress("answering held-out prompts", start, count)
            lessons = [self._lessons.lesson(each, held_out=True) for each in range(start, min(count, start + _BATCH))]
            answers = teach(self._model, lessons, self._engine.end_ids, self._settings.max_new_tokens)
            found += zip(lessons, answers, strict=True)
        return found

    @torch.no_grad()
    def _figures(self, held_out: Sequence[tuple[Lesson, TaughtAnswer]], distances: torch.Tensor) -> HeldOutFigures:
        modular, agreeing = list[float](), list[float]()
        for number, (lesson, target) in enumerate(held_out):
            self._progress("measuring held-out prompts", number, len(held_out))
            found = modular_logits(self._model, lesson, target.answer_ids)
            modular.append(float(divergences(found, target.logits).mean()))
            agreeing.append(float((found.argmax(-1) == target.logits.argmax(-1)).double().mean()))
        return HeldOutFigures(
            divergence=max(0.0, statistics.fmean(modular)),
            agreement=statistics.fmean(agreeing),
            distance=float(self._relative(distances)),
            num_prompts=len(held_out),
        )


def _duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    return (
        f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min" if minutes else "less than 1 min"
    )
