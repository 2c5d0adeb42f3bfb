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

import sys

INTERRUPTED = 130
"""How a command ends that Ctrl-C ended."""


def main() -> None:
    """Run the command line and exit; Ctrl-C ends it without a traceback while it is still loading, too."""
    try:
        from promptcache.cli.app import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
