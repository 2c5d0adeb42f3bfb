"""Blob tiers: encodings as files in a folder or under a URL, their format, and archives of them."""
