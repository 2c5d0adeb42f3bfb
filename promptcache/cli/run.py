"""Answering one prompt: the work of `promptcache run`.

Comes in: file names and options. Goes out: the answer on stdout and an account of it on stderr, or both as JSON. Every
check that needs no model is made before one is loaded.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

from promptcache.cli.model_folder import model_folder
from promptcache.cli.output import tell, write_json, write_text
from promptcache.cli.request import RunOptions, plan_request, read_request
from promptcache.cli.sources import Sources


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
    if folder is not None:
        plan_request(request, folder, options.max_new_tokens or 1)  # checks lengths in tokens; the engine makes its own
        # nothing will be downloaded, so transformers has no progress worth a line; it reads this when it is imported
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    with _waiting() if folder is not None and sys.stderr.isatty() else nullcontext():
        # torch and transformers take seconds to import: not before the prompt has passed its checks
        from promptcache.cli.answer import answer_data, answer_request, load_engine, usage_line

        engine = load_engine(options)
    answered = answer_request(engine, request, options, write=_discard if as_json else write_text)
    if as_json:
        write_json(answer_data(answered, request, options.model))
    else:
        write_text("\n")
        tell(*(f"warning: {' '.join(fault.split())}" for fault in answered.faults), usage_line(answered))


def _waiting() -> AbstractContextManager[object]:
    from promptcache.cli.console import stderr

    return stderr().status("loading the model")


def _discard(piece: str) -> None:
    """Take a piece of an answer that is written as a whole later."""
