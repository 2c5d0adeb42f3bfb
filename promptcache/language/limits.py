"""Limits of documents. A document above them is refused: its check would take minutes, or its texts too much memory."""

MAX_BYTES = 8 * 1024 * 1024
"""Size of a document, of a file that it names, of all texts that it includes, and of what a template writes."""

MAX_ELEMENTS = 20_000
"""Elements of a document, elements and texts that it includes, and modules that its rules name."""

MAX_DEPTH = 50
"""Depth of elements, includes, conditions, and lists and mappings for a template: their readers are recursive."""

MAX_NAME = 200
"""Characters of a name: messages quote names. A separator has as many, because each block of text repeats it."""

MAX_PATTERN = 2_000
"""Characters of a pattern."""

MAX_EXAMPLES = 500
"""Examples of a schema. Each is resolved as a prompt."""

MAX_STEPS = 20_000_000
"""Limit of the work on one question about rules, such as the check of a schema: a few seconds.

A step is one propagation of the solver. One question inside another one shares its limit.
"""

MAX_RENDER_S = 2.0
"""Time of a template."""
