"""The tests, by room."""
