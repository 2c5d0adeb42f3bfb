"""Tests of what is found and how it is shown."""
