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

from promptcache.cli.app import main

__all__ = ["main"]
