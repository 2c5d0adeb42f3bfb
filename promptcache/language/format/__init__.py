"""Formatter for schemas and prompts, and the markup reader that it uses."""
