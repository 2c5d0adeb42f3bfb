"""Functions as tools, described as transformers does for chat templates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from promptcache.diagnostics import InvalidValue


def function_schema(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the JSON schema of a function with type hints, and a docstring with a section `Args:` of Google's style.

    Raises:
        InvalidValue: It has no such docstring, or an argument has no type hint.
    """
    from transformers.utils.chat_template_utils import (
        DocstringParsingException,
        TypeHintParsingException,
        get_json_schema,
    )

    try:
        found: dict[str, Any] = get_json_schema(function)
    except (DocstringParsingException, TypeHintParsingException) as error:
        raise InvalidValue(f"{getattr(function, '__name__', function)} cannot be a tool: {error}") from None
    return found
