"""The commands, one file each: options in, calls of the module that does the work, an exit code out.

A command's file is loaded when the command is asked for, and the module that does its work when it runs: language,
tokenizers and torch take from a tenth of a second to several to load, and `check` never waits for a model.
"""
