"""Property testing for schemas and prompts: Hypothesis strategies, and stand-ins that need no files.

`strategies` needs `promptcache[testing]`. This file imports nothing, because the stand-ins (`byte_tokenizer`,
`tiny_model`) also serve where Hypothesis is not installed.
"""
