"""One process up to its first token: `python -m benchmarks.first_process`, which `python -m benchmarks first` starts.

It writes the seconds of each stage as JSON. The standard library is all that it imports before the clock runs.
"""

import json
import sys
import time
from collections.abc import Callable
from typing import Any

_NUM_MODULES, _NUM_USED = 4, 2
STAGES = ("python", "import", "load", "self-test", "prepare", "schema", "encode", "first token")
"""In their order. `prepare` is all that `from_pretrained` does beside loading and the self-test. `encode` computes the
modules of the first request, and `first token` is the rest of it.
"""


def main(started: float, model: str, dtype: str, words: int) -> dict[str, float]:
    """Return the seconds of each stage, and of the same request again.

    Args:
        started: When this process was started, by `time.monotonic`.
        words: Words of each module.
    """
    seconds = {"python": time.monotonic() - started}
    clock = time.perf_counter
    begin = clock()
    from promptcache import engine

    seconds["import"] = clock() - begin

    def timed(stage: str, run: Callable[..., Any]) -> Callable[..., Any]:
        def run_timed(*args: Any, **options: Any) -> Any:
            begin = clock()
            result = run(*args, **options)
            seconds[stage] = clock() - begin
            return result

        return run_timed

    parts: Any = engine
    parts.load_model, parts.check_linking = timed("load", parts.load_model), timed("self-test", parts.check_linking)
    made = timed("prepare", engine.Engine.from_pretrained)(model, dtype=dtype, history=False)
    seconds["prepare"] -= seconds["load"] + seconds["self-test"]
    text = " ".join(f"word {number}" for number in range(max(1, words // 2)))
    modules = "".join(f'<module name="m{each}">{each}: {text}</module>' for each in range(_NUM_MODULES))
    used = "".join(f"<m{each}/>" for each in range(0, _NUM_MODULES, _NUM_MODULES // _NUM_USED))
    timed("schema", made.add_schema)(f'<schema name="first">{modules}</schema>')
    prompt = f'<prompt schema="first">{used}What is the first word?</prompt>'
    for stage in ("first token", "again"):
        answer = timed(stage, made.generate)(prompt, max_new_tokens=1)
        if stage == "first token":
            seconds["encode"] = answer.timing.encode_s
            seconds[stage] -= answer.timing.encode_s
    return seconds


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(float(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4]))))
