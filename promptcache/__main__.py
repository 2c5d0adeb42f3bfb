"""`python -m promptcache` is the command line."""

from promptcache.cli import main

main()
