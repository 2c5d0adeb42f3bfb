"""Answering one prompt: the work of `promptcache run`.

Comes in: file names and options. Goes out: the answer on stdout and an account of it on stderr, or both as JSON. Every
check that needs no model is made before one is loaded.
"""

from __future__ import annotations

from collections.abc import Sequence

from promptcache.cli.console import progress, show_loading
from promptcache.cli.output import tell, write_json, write_text
from promptcache.cli.request import RunOptions, TokenLimits, plan_request, read_request
from promptcache.cli.sources import Sources
from promptcache.tokenizer import model_folder


def run_prompt(
    file: str,
    schema_files: Sequence[str],
    words: Sequence[str],
    options: RunOptions,
    sources: Sources,
    *,
    as_json: bool,
) -> None:
    """Check a prompt, load the model, and answer.

    Raises:
        LanguageError: every fault of the prompt or its schema; no model was loaded.
        PromptCacheError: the schema, the model or the device is not there, or positions or memory do not suffice.
    """
    request = read_request(file, schema_files, words, sources)
    folder = model_folder(options.model)
    if (folder / "tokenizer.json").is_file():  # else transformers makes one of other files
        plan_request(request, TokenLimits.of(folder), options.max_new_tokens or 1)  # the engine plans by itself
    with progress() as show:
        show_loading(show, options.model)
        # torch and transformers take seconds to import: not before the prompt has passed its checks
        from promptcache.cli.answer import answer_data, answer_request, load_engine, usage_line

        engine = load_engine(options)
    answered = answer_request(engine, request, options, write=_discard if as_json else write_text)
    if as_json:
        write_json(answer_data(answered, request, options.model))
    else:
        write_text("\n")
        tell(*(f"warning: {' '.join(fault.split())}" for fault in answered.faults), usage_line(answered))


def _discard(piece: str) -> None:
    """Take a piece of an answer that is written as a whole later."""
