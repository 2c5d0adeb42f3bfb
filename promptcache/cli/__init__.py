"""The command line. `app` lists the commands; each command is one file: its options, its work, its text and JSON.

Shared files: `options` (with groups of them, and `--json`), `settings` (declared options, and the engine that they
make), `exits` (exit codes and errors), `output` (plain text and JSON), `console` (styled text and progress),
`documents` (that are read and written), `request` (a prompt with its schema, and the tokenizer that measures both).
"""

import atexit
import gc
import os
import signal
import sys
from types import FrameType
from typing import NoReturn

INTERRUPTED = 130
"""Exit code after Ctrl-C."""

_OBJECTS_BEFORE_COLLECTION = 10_000
"""More than Python's 700: importing torch and transformers makes very many objects, and hardly any is garbage."""


def main() -> None:
    """Run the command line and exit; Ctrl-C ends it without a traceback, also while modules are imported."""
    gc.set_threshold(_OBJECTS_BEFORE_COLLECTION, 10, 10)
    code = 1
    atexit.register(lambda: _end(code))  # the first one to be registered runs last
    interrupted = False

    def interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
        nonlocal interrupted
        interrupted = True
        raise KeyboardInterrupt

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, interrupt)
    try:
        from promptcache.cli.app import main as run

        run()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        raise
    except KeyboardInterrupt:
        code = INTERRUPTED
        sys.exit(code)
    except Exception:
        if not interrupted:
            raise
        code = INTERRUPTED  # a library that was being imported turned the interrupt into another error
        sys.exit(code)


def _end(code: int) -> None:
    """End the process, whose exit functions have all run, without freeing its objects.

    With torch and transformers, that takes a second. Leaving them out of the last collection (`gc.freeze`) saves most
    of it, but then triton reports leaks.
    """
    try:
        for stream in filter(None, (sys.stdout, sys.stderr)):
            stream.flush()
    except (OSError, ValueError):
        return  # Python tries again, and says what is wrong
    os._exit(code)
