"""Measurements: Prompt Cache against what a user would do instead, on the user's own model and machine."""
