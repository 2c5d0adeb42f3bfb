"""Exit codes, and the context manager that turns expected errors into a message and an exit code.

A message goes to stderr, or to stdout as JSON with `--json`. An unexpected error keeps its traceback: it is a bug.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from enum import IntEnum
from pathlib import Path

from click.exceptions import Exit, UsageError

from promptcache.cli.output import tell, write_json
from promptcache.diagnostics import (
    ContextLengthExceeded,
    Diagnostic,
    LanguageError,
    ModelError,
    PromptCacheError,
    StoreError,
    UnknownSchema,
)
from promptcache.language import similar_path


class ExitCode(IntEnum):
    """Exit codes of all commands."""

    OK = 0
    FINDINGS = 1
    USAGE = 2
    ENVIRONMENT = 3
    INTERRUPTED = 130
    BROKEN_PIPE = 141  # 128 + SIGPIPE


class UsageMistake(PromptCacheError):
    """The options of a command do not fit together, or do not fit its documents."""


class EnvironmentMissing(PromptCacheError):
    """Something besides the documents is missing: a file, a device, a package, memory."""


def exit_code(error: PromptCacheError) -> ExitCode:
    match error:
        case LanguageError():
            return findings_code(error.diagnostics, failed=True)
        case UnknownSchema() | ContextLengthExceeded():
            return ExitCode.FINDINGS
        case ModelError() | StoreError() | EnvironmentMissing():
            return ExitCode.ENVIRONMENT
        case _:
            return ExitCode.USAGE


def findings_code(diagnostics: Iterable[Diagnostic], *, failed: bool) -> ExitCode:
    """Return the exit code of a command that has checked documents."""
    if any(each.code == "PC010" for each in diagnostics):  # a file that cannot be read
        return ExitCode.ENVIRONMENT
    return ExitCode.FINDINGS if failed else ExitCode.OK


@contextmanager
def ending(*, as_json: bool) -> Iterator[None]:
    """Run a command; turn each expected error into a message and an exit code. With `as_json`, both are on stdout."""
    try:
        yield
        sys.stdout.flush()
    except PromptCacheError as error:
        show_error(error, as_json=as_json)
        raise Exit(exit_code(error)) from None
    except UsageError as error:
        if "extra argument" in error.message:
            fix = "an option names a file, as in --schema FILE; a value with spaces needs quotes"
            error = UsageError(f"{error.message}; {fix}", error.ctx)
        if as_json:
            _report(error.format_message(), as_json=True)
        else:
            error.show()
        raise Exit(ExitCode.USAGE) from None
    except KeyboardInterrupt:
        raise Exit(ExitCode.INTERRUPTED) from None
    except BrokenPipeError:
        with suppress(OSError, ValueError):  # Python flushes stdout at exit; a captured stdout has no descriptor
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise Exit(ExitCode.BROKEN_PIPE) from None
    except (MemoryError, ModuleNotFoundError, OSError, RuntimeError) as error:
        if (message := _missing(error)) is None:
            raise
        _report(message, as_json=as_json)
        raise Exit(ExitCode.ENVIRONMENT) from None


def show_error(error: PromptCacheError, *, as_json: bool = False) -> None:
    """Write an error to stderr, or with `as_json` to stdout."""
    if not isinstance(error, LanguageError):
        _report(str(error), as_json=as_json)
    elif as_json:
        write_json({"diagnostics": error.diagnostics})
    else:
        from promptcache.cli.console import print_diagnostics

        print_diagnostics(error.diagnostics, beside=True)


def system_message(error: OSError) -> str:
    """Return the message of the operating system with the name of the file."""
    message = error.strerror or str(error)
    return f"{message}: {error.filename}" if error.filename else message


def _missing(error: MemoryError | ModuleNotFoundError | OSError | RuntimeError) -> str | None:
    """Return what the environment lacks, or None if the error means something else."""
    if isinstance(error, ModuleNotFoundError):
        package = (error.name or "promptcache").partition(".")[0]
        if package == "promptcache":
            return None
        return f"this needs '{package}', which is not installed: pip install promptcache brings it"
    if isinstance(error, MemoryError):
        return "not enough memory"
    if isinstance(error, OSError):
        is_lost = isinstance(error, FileNotFoundError) and isinstance(error.filename, str)
        return system_message(error) + (f"; {similar_path(Path(error.filename))}" if is_lost else "")
    message = str(error).partition("\n")[0]  # torch has an error class for GPUs and only a text for CPUs (2.6 to 2.13)
    is_memory = type(error).__name__ == "OutOfMemoryError" or "can't allocate memory" in message
    return f"not enough memory: {message}" if is_memory else None


def _report(message: str, *, as_json: bool) -> None:
    line = " ".join(message.split())
    if as_json:
        with suppress(OSError):  # the error may be that stdout takes nothing
            write_json({"error": line})
            sys.stdout.flush()
            return
    tell(f"error: {line}")
