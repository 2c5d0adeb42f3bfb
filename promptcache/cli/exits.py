"""How a command ends: its exit code, and errors as words instead of tracebacks.

Comes in: whatever a command raises. Goes out: an exit code, with a message on stderr, or in JSON on stdout where JSON
was asked for. This file does not know what the commands do.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import IntEnum
from pathlib import Path

from click.exceptions import Exit, UsageError

from promptcache.cli.contexts import ContextMistake, read_context
from promptcache.cli.output import as_data, print_diagnostics, tell, write_json
from promptcache.cli.sources import Sources
from promptcache.diagnostics import (
    ContextLengthExceeded,
    LanguageError,
    ModelError,
    PromptCacheError,
    StoreError,
    UnknownSchema,
)

UNREADABLE = "PC010"
"""The code of a file that cannot be read: no fault of a document."""


class ExitCode(IntEnum):
    """What a command says to the shell."""

    OK = 0
    FINDINGS = 1
    USAGE = 2
    ENVIRONMENT = 3
    INTERRUPTED = 130
    BROKEN_PIPE = 141  # 128 + SIGPIPE, as any command that a closed pipe ends


class UsageMistake(PromptCacheError):
    """The options of a command do not fit together, or do not fit what it works on."""


class EnvironmentMissing(PromptCacheError):
    """Something outside the documents is not there: a file, a device, memory."""


def exit_code(error: PromptCacheError) -> ExitCode:
    """Return how a command ends that this error stopped."""
    match error:
        case LanguageError() if any(each.code == UNREADABLE for each in error.diagnostics):
            return ExitCode.ENVIRONMENT
        case LanguageError() | UnknownSchema() | ContextLengthExceeded():
            return ExitCode.FINDINGS
        case ModelError() | StoreError() | EnvironmentMissing():
            return ExitCode.ENVIRONMENT
        case _:
            return ExitCode.USAGE


@contextmanager
def ending(*, as_json: bool, context: Path | None = None) -> Iterator[Sources]:
    """Run a command; every error that is expected becomes a message and an exit code.

    Args:
        context: The file that `--context` names.

    Yields:
        Where the command puts the names of the documents that it reads.
    """
    sources = Sources()
    try:
        if context is not None:
            sources.context = read_context(context)
        with _checked_use(sources):
            yield sources
        sys.stdout.flush()
    except LanguageError as error:
        if as_json:
            write_json({"diagnostics": [as_data(each) for each in error.diagnostics]})
        else:
            print_diagnostics(error.diagnostics, beside=True)
        raise Exit(exit_code(error)) from None
    except PromptCacheError as error:
        _tell(str(error), as_json=as_json)
        raise Exit(exit_code(error)) from None
    except UsageError as error:
        if as_json:
            _tell(error.format_message(), as_json=True)
        else:
            error.show()
        raise Exit(ExitCode.USAGE) from None
    except KeyboardInterrupt:
        raise Exit(ExitCode.INTERRUPTED) from None
    except BrokenPipeError:
        _leave_pipe()
        raise Exit(ExitCode.BROKEN_PIPE) from None
    except (MemoryError, ModuleNotFoundError, OSError, RuntimeError) as error:
        if (words := _missing(error)) is None:
            raise
        _tell(words, as_json=as_json)
        raise Exit(ExitCode.ENVIRONMENT) from None


@contextmanager
def _checked_use(sources: Sources) -> Iterator[None]:
    """Refuse a context that nothing was there for, once a command has come to a good end and written its data."""
    end = None
    try:
        yield
    except Exit as ended:
        end = ended
    if not (end and end.exit_code):
        try:
            sources.check_context()
        except ContextMistake as mistake:
            sys.stdout.flush()
            tell(f"error: {mistake}")
            raise Exit(ExitCode.USAGE) from None
    if end is not None:
        raise end


def told_by_system(error: OSError) -> str:
    """Return what the system says of a file, and which."""
    told = error.strerror or str(error)
    return f"{told}: {error.filename}" if error.filename else told


def _missing(error: MemoryError | ModuleNotFoundError | OSError | RuntimeError) -> str | None:
    """Return what the environment does not have, or None for an error that says something else."""
    if isinstance(error, ModuleNotFoundError):
        package = (error.name or __package__).partition(".")[0]
        ours = package == __package__.partition(".")[0]
        return None if ours else f"this needs '{package}', which is not installed: pip install promptcache brings it"
    if isinstance(error, MemoryError):
        return "not enough memory"
    if isinstance(error, OSError):
        return told_by_system(error)
    words = str(error).partition("\n")[0]  # torch has a class for GPUs and only a text for CPUs (2.6 to 2.13)
    is_memory = type(error).__name__ == "OutOfMemoryError" or "can't allocate memory" in words
    return f"not enough memory: {words}" if is_memory else None


def _tell(message: str, *, as_json: bool) -> None:
    line = " ".join(message.split())
    if as_json:
        with suppress(OSError):  # what went wrong may be that stdout takes nothing
            write_json({"error": line})
            sys.stdout.flush()
            return
    tell(f"error: {line}")


def _leave_pipe() -> None:
    """Point stdout elsewhere, so that Python does not complain when it flushes at exit (docs of the signal module)."""
    with suppress(OSError, ValueError):  # a captured stdout has no descriptor
        devnull = os.open(os.devnull, os.O_WRONLY)
        os.dup2(devnull, sys.stdout.fileno())
        os.close(devnull)
