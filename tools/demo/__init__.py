"""The training of the demo model: its documents, tokenizer and architecture, and questions that measure it.

`promptcache.demo` ships the weights. The model card (`promptcache/demo/model/README.md`) has the commands and figures.
"""
