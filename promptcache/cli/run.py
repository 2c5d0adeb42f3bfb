"""`promptcache run`: answer one prompt. All checks that need no model are made before the model is loaded."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from promptcache.cli.console import progress
from promptcache.cli.documents import Sources
from promptcache.cli.exits import UsageMistake
from promptcache.cli.options import GroupedCommand, Output, context_option, prompt_argument, schemas_option, with_json
from promptcache.cli.output import end_answer, plain, repaired_text, tell, warn, write_text
from promptcache.cli.request import ask_request, check_lengths, read_request
from promptcache.cli.settings import OF_ONE_ANSWER, AnswerOptions, answer_options
from promptcache.diagnostics import InvalidGeneration, counted
from promptcache.structured import JSONSchema, check_format

if TYPE_CHECKING:
    from promptcache.decode import Stream, Usage


@click.command("run", cls=GroupedCommand)
@prompt_argument
@schemas_option
@click.option(
    "--use",
    metavar="MODULE",
    multiple=True,
    help="A module for the question that PROMPT then is; may be given several times.",
)
@answer_options(OF_ONE_ANSWER)
@click.option(
    "--json-schema",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="A JSON schema that the answer must have.",
)
@click.option(
    "--warm/--no-warm",
    default=True,
    help="Encode the prompt's modules before the time to first token (TTFT) is measured.",
)
@context_option
@with_json
def command(
    sources: Sources,
    prompt: str,
    schema: tuple[str, ...],
    use: tuple[str, ...],
    options: AnswerOptions,
    json_schema: Path | None,
    warm: bool,
) -> Output:
    """Answer a prompt, and say what was reused.

    PROMPT is a prompt file; - is standard input. With --use it is a question about modules of the only schema in the
    working directory, or of --schema.

    Example: promptcache run prompt.xml --model FOLDER --arg duration="four days"

    Example: promptcache run "What should I pack?" --use miami
    """
    output = None
    if json_schema is not None:
        try:
            output = JSONSchema(json_schema.read_text(encoding="utf-8"))
            check_format(output)
        except (InvalidGeneration, UnicodeDecodeError) as error:
            raise UsageMistake(f"--json-schema {json_schema}: {error}") from None
    if use:
        request = ask_request(prompt, use, schema, options.arg, sources)
    else:
        request = read_request(prompt, schema, options.arg, sources)
    check_lengths(request, options.engine.model, options.answer)
    generation = {**options.answer, "output": output, "tools": options.read_tools(request.tools)}
    engine = options.engine.load()
    engine.add_schema(request.schema.source)
    with progress() as show:
        show("encoding the modules of the prompt", 0, None)  # the first request encodes these, and nothing else
        warmed = engine.generate(request.prompt, **generation | {"max_new_tokens": 1}).usage if warm else None
    engine.clear_history()

    def data() -> dict[str, Any]:
        completion = engine.generate(request.prompt, **generation)
        num_warmed = 0 if warmed is None else warmed.num_encoded_tokens
        return {
            "text": completion.text,
            "tool_calls": completion.tool_calls,
            "finish_reason": completion.finish_reason,
            "level": completion.level,
            "repair": completion.repair,
            "lossy": completion.lossy,
            "warnings": completion.warnings,
            **request.data(options.engine.model),
            "usage": {**plain(completion.usage), "num_warmed_tokens": num_warmed},
            "warmed": warmed,
            "timing": {**plain(completion.timing), "ttft_s": completion.timing.ttft_s},
        }

    return Output(data=data, text=lambda: print_answer(engine.stream(request.prompt, **generation), warmed))


def print_answer(stream: Stream, warmed: Usage | None) -> None:
    """Print an answer while it is generated; after it the calls of tools, the warnings and a line on the request.

    The modules of the request were loaded by the one that `warmed` belongs to, if there was one.
    """
    from promptcache.decode import FinishReason, KVSource

    with stream:
        for piece in stream:
            write_text(piece)
    completion = stream.completion
    assert completion is not None, "an exhausted stream has its completion"
    end_answer(completion)
    found = (f"{each.code}: {each.message}" for each in completion.warnings)
    warn(*dict.fromkeys((*found, *(warmed.faults if warmed else ()), *completion.usage.faults)))
    usage, first = completion.usage, warmed or completion.usage
    counts = f"reused {usage.num_reused_tokens:,} tokens, prefilled {usage.num_new_tokens:,}"
    counts += repaired_text(usage.num_repaired_tokens)
    parts = [f"{counts}, generated {usage.num_generated_tokens:,}"]
    if usage.num_generated_tokens > 1:  # the first token belongs to TTFT
        parts[0] += f" at {(usage.num_generated_tokens - 1) / completion.timing.decode_s:,.1f} tokens/s"
    if completion.finish_reason is FinishReason.LENGTH:
        parts[0] += " (all that were allowed)"
    level = f"{completion.level}, lossy" if completion.lossy else str(completion.level)
    parts += [f"TTFT {completion.timing.ttft_s * 1000:.1f} ms", level]
    modules = [each for each in first.modules if each.module] or first.modules
    loaded = Counter(each.tier for each in modules if each.source is KVSource.LOAD)
    parts += [f"{counted(number, 'module')} from {tier}" for tier, number in loaded.items()]
    if warmed is not None and warmed.num_encoded_tokens:
        parts.append(f"encoded {warmed.num_encoded_tokens:,} tokens first")
    if usage.num_encoded_tokens:
        parts.append(f"encoded {usage.num_encoded_tokens:,} tokens within TTFT")
    tell(" · ".join(parts))
