"""Tiers that keep encodings as files, in a folder or under a URL, and the format of these files."""
