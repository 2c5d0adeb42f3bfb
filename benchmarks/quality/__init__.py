"""The quality of cached prompts: questions with known answers, served in several ways."""
