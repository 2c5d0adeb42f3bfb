"""`layout` and `diff`."""
