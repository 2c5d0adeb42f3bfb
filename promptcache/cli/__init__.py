"""The command line: files and options in, text or JSON and an exit code out.

```
app -> commands/NAME            the options of a command
    -> check | layout | rendering | explain | diff | schema_tests | run | …    its work, as plain values
    -> output | layout_tree | explain_text | schema_tests_text | …             what people and programs read
```

files, sources: documents that were read; exits: how a command ends; completion, shells: what a shell is offered.

Comes in: what stands in the shell. Goes out: data on stdout, everything else on stderr, an exit code. This room decides
nothing about the language, positions or KV.
"""

import signal
import sys
from types import FrameType
from typing import NoReturn

INTERRUPTED = 130
"""How a command ends that Ctrl-C ended."""


def main() -> None:
    """Run the command line and exit; Ctrl-C ends it without a traceback while it is still loading, too."""
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
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except Exception:
        if not interrupted:
            raise
        sys.exit(INTERRUPTED)  # a library that was being imported made an error of its own of it
