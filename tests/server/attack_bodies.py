"""Bodies that are small and take long."""

from __future__ import annotations

import random


def hard_schema(num_modules: int = 230, seed: int = 1) -> str:
    """Return a schema of 45 kB with random rules of three alternatives each, which are hard to satisfy together."""
    draw = random.Random(seed)

    def rule() -> str:
        chosen = draw.sample(range(num_modules), 3)
        return " or ".join(f"{draw.choice(('', 'not '))}m{each}" for each in chosen)

    modules = "".join(f'<module name="m{each}">text</module>' for each in range(num_modules))
    rules = "".join(f'<assert test="{rule()}"/>' for _ in range(int(4.3 * num_modules)))
    return f'<schema name="hard">{modules}<rules>{rules}</rules></schema>'
