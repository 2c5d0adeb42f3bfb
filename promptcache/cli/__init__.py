"""The command line: files and options in, text or JSON and an exit code out.

```
app (options) -> check | layout | run (the work) -> render, layout_tree, run (text or JSON)
```

Comes in: what stands in the shell. Goes out: data on stdout, everything else on stderr, an exit code. This room decides
nothing about the language, positions or KV.
"""

from promptcache.cli.app import main

__all__ = ["main"]
