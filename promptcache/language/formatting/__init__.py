"""How a document is laid out: its markup as written, the layout of one text block, and of whole elements."""
