"""Two requests against one schema whose modules are encoded once, before either."""

from __future__ import annotations

from pathlib import Path

from promptcache import Engine, Prompt

SCHEMAS = Path(__file__).parents[1] / "schemas"


def main() -> None:
    """Ask about two cities, stream the second answer, and show what was reused."""
    engine = Engine.from_pretrained("demo")
    engine.add_schema(SCHEMAS / "travel.xml")
    (report,) = engine.warm("travel")
    print(f"encoded {report.num_encoded_tokens} tokens in {report.num_encoded} encodings, {report.nbytes:,} bytes")

    miami = Prompt("travel").use("trip-plan", duration="four days").use("miami").user("What is the best dish of Miami?")
    answer = engine.generate(miami, do_sample=False)
    usage, timing = answer.usage, answer.timing
    print(answer.text)
    print(f"reused {usage.num_reused_tokens} tokens, prefilled {usage.num_new_tokens}")
    print(f"TTFT {1e3 * timing.ttft_s:.1f} ms, {answer.level}")

    paris = Prompt("travel").use("paris").user("What is the airport of Paris?")
    with engine.stream(paris, do_sample=False) as stream:
        for piece in stream:
            print(piece, end="", flush=True)
    print()


if __name__ == "__main__":
    main()
