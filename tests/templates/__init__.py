"""Tests of what chat templates write: conversations, schemas and texts have the tokens that transformers gives."""
