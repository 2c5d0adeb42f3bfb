"""Decides how long documents are and how many questions are unanswerable, from the answers so far.

Comes in: counts of right answers. Goes out: the settings of the next batch. Plain numbers only, so that a checkpoint
can hold them. Knows neither tokens nor tensors.
"""

from dataclasses import asdict, dataclass, replace
from random import Random

from promptcache.demo.documents import DocumentSettings

STAGES = (3, 8, 16, 24)
_PASS_KNOWN, _PASS_UNKNOWN = 0.7, 0.6
_FIRST_STAGE_WITH_UNKNOWN = 1
_MEMORY = 0.92  # of the running accuracies, per batch


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Running accuracies of whole answers on the current stage's longest documents, and the stage."""

    stage: int = 0
    known: float = 0.0
    unknown: float = 0.0
    num_batches: int = 0

    @property
    def max_facts(self) -> int:
        """Facts in the longest documents of this stage."""
        return STAGES[self.stage]

    @property
    def asks_unknown(self) -> bool:
        """Whether there are unanswerable questions yet: before copying works, "unknown" is a trap."""
        return self.stage >= _FIRST_STAGE_WITH_UNKNOWN

    @property
    def unknown_share(self) -> float:
        """More unanswerable questions where these are answered worse than the others, few while the others are not."""
        if not self.asks_unknown:
            return 0.0
        return min(0.35, max(0.05, 0.25 + 0.4 * (self.known - self.unknown))) if self.known > 0.55 else 0.05

    @property
    def made_up_share(self) -> float:
        """Made-up names are long in tokens: fewer of them at first."""
        return min(0.4, 0.2 + 0.1 * self.stage)

    def settings(self, rng: Random) -> DocumentSettings:
        """What the next batch holds: mostly this stage's length, otherwise anything shorter."""
        num_facts = self.max_facts if rng.random() < 0.6 else rng.randint(1, self.max_facts)
        return DocumentSettings(num_facts=num_facts, max_questions=12, unknown_share=self.unknown_share)

    def after(self, num_facts: int, known: tuple[int, int], unknown: tuple[int, int]) -> "Progress":
        """Count one batch; `known` and `unknown` are (right, asked). May enter the next stage."""
        if num_facts != self.max_facts:
            return self
        now = replace(
            self,
            known=_running(self.known, known),
            unknown=_running(self.unknown, unknown),
            num_batches=self.num_batches + 1,
        )
        passed_unknown = now.unknown > _PASS_UNKNOWN or not self.asks_unknown
        passed = now.known > _PASS_KNOWN and passed_unknown and now.num_batches >= 20
        if passed and self.stage + 1 < len(STAGES):
            return replace(now, stage=self.stage + 1, num_batches=0, known=now.known - 0.1)
        return now

    def as_dict(self) -> dict[str, float]:
        """For a checkpoint."""
        return asdict(self)


def _running(before: float, counts: tuple[int, int]) -> float:
    right, asked = counts
    return before if asked == 0 else _MEMORY * before + (1 - _MEMORY) * right / asked
