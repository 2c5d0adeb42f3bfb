"""The command line: files and options in, text or JSON and an exit code out.

```
app (options)   -> check | layout | rendered | explain | diff | run | …   the work, as plain values
the work        -> formats, render, layout_tree, explain_text, …            text, JSON or another form
files, sources     documents that were read; exits: how a command ends; completion: what a shell is offered
```

Comes in: what stands in the shell. Goes out: data on stdout, everything else on stderr, an exit code. This room decides
nothing about the language, positions or KV.
"""

from promptcache.cli.app import main

__all__ = ["main"]
