"""Blob tiers: encodings as files in a folder or under a URL, and their format."""
