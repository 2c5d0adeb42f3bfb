"""Fuzzing what reads documents of strangers: no crash but our own errors, no second of work for a small document."""
