"""`promptcache run`: answer one prompt. All checks that need no model are made before the model is loaded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from promptcache.cli.console import progress
from promptcache.cli.documents import Sources
from promptcache.cli.exits import UsageMistake
from promptcache.cli.groups import GroupedCommand
from promptcache.cli.options import Output, context_option, prompt_argument, schemas_option, with_json
from promptcache.cli.output import end_answer, plain, repaired_text, tell, warn, write_text
from promptcache.cli.request import CheckedRequest, ask_request, check_lengths, read_request
from promptcache.cli.settings import OF_ONE_ANSWER, AnswerOptions, answer_options
from promptcache.diagnostics import InvalidGeneration, counted
from promptcache.structured import JSONSchema, OutputFormat, check_format

if TYPE_CHECKING:
    from promptcache.decode import Completion, Usage


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
    generation = {**options.answer, "output": _output(json_schema)}
    if use:
        request = ask_request(prompt, use, schema, options.arg, sources)
    else:
        request = read_request(prompt, schema, options.arg, sources)
    check_lengths(request, options.engine.model, options.answer)
    generation["tools"] = options.read_tools(request.tools)
    engine = options.engine.load()
    engine.add_schema(request.schema.source)
    with progress() as show:
        show("encoding the modules of the prompt", 0, None)  # the first request encodes these, and nothing else
        warmed = engine.generate(request.prompt, **generation | {"max_new_tokens": 1}).usage if warm else None
    engine.clear_history()

    def answer(write: Callable[[str], object]) -> Completion:
        with engine.stream(request.prompt, **generation) as stream:
            for piece in stream:
                write(piece)
        assert stream.completion is not None, "an exhausted stream has its completion"
        return stream.completion

    return Output(
        data=lambda: _data(answer(lambda _: None), warmed, request, options.engine.model),
        text=lambda: print_end(answer(write_text), warmed),
    )


def _output(path: Path | None) -> OutputFormat | None:
    """Return the format of the answer in a file.

    Raises:
        UsageMistake: The file is no JSON schema, or has one that is not supported.
    """
    if path is None:
        return None
    try:
        output = JSONSchema(path.read_text(encoding="utf-8"))
        check_format(output)
    except (InvalidGeneration, UnicodeDecodeError) as error:
        raise UsageMistake(f"--json-schema {path}: {error}") from None
    return output


def print_end(completion: Completion, warmed: Usage | None) -> None:
    """Print the calls of tools, the warnings and the line on the request, after the text of an answer."""
    end_answer(completion)
    found = (f"{each.code}: {each.message}" for each in completion.warnings)
    warn(*dict.fromkeys((*found, *(warmed.faults if warmed else ()), *completion.usage.faults)))
    tell(_usage_line(completion, warmed))


def _usage_line(completion: Completion, warmed: Usage | None) -> str:
    """Describe a request; its modules were loaded by the request that `warmed` belongs to, if there was one."""
    from promptcache.decode import FinishReason, KVSource

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
    return " · ".join(parts)


def _data(completion: Completion, warmed: Usage | None, request: CheckedRequest, model: str) -> dict[str, Any]:
    num_warmed = 0 if warmed is None else warmed.num_encoded_tokens
    return {
        "text": completion.text,
        "tool_calls": completion.tool_calls,
        "finish_reason": completion.finish_reason,
        "level": completion.level,
        "repair": completion.repair,
        "lossy": completion.lossy,
        "warnings": completion.warnings,
        **request.data(model),
        "usage": {**plain(completion.usage), "num_warmed_tokens": num_warmed},
        "warmed": warmed,
        "timing": {**plain(completion.timing), "ttft_s": completion.timing.ttft_s},
    }
