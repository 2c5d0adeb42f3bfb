"""Names of methods in other libraries: the error has ours."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

from promptcache import Engine, Prompt
from promptcache.diagnostics import NamedElsewhere, elsewhere
from promptcache.testing.byte_tokenizer import ByteTokenizer
from promptcache.testing.tiny_model import tiny_model

ENGINE = Engine(tiny_model(), ByteTokenizer())
NAMES = [(each, name) for each in (ENGINE, Prompt("travel")) for name in each._elsewhere]


@pytest.mark.parametrize(("made", "name"), NAMES, ids=lambda each: each if isinstance(each, str) else "")
def test_a_name_of_another_library_gets_ours(made: Any, name: str) -> None:
    """The error names a method that there is, and `hasattr` is false."""
    kind = type(made).__name__
    with pytest.raises(AttributeError, match=rf"no attribute '{name}'; it is called {kind}\.\w+ here$") as caught:
        getattr(made, name)

    assert callable(getattr(made, str(caught.value).split(".")[-1].removesuffix(" here")))
    assert not hasattr(made, name)


def test_other_names_have_the_error_of_python() -> None:
    """Python then suggests the nearest name, because the error has the object."""
    with pytest.raises(AttributeError, match=r"'Engine' object has no attribute 'genrate'$") as caught:
        _ = ENGINE.genrate  # type: ignore[attr-defined]

    assert (caught.value.name, caught.value.obj) == ("genrate", ENGINE)


class Broken(NamedElsewhere):
    """An object with a property that fails."""

    _elsewhere = elsewhere(good="fine well")

    @property
    def good(self) -> int:
        raise AttributeError("mine")


def test_the_error_of_a_property_is_not_hidden() -> None:
    """A fault of our own looks like one."""
    with pytest.raises(AttributeError, match=r"^mine$"):
        _ = Broken().good
    with pytest.raises(AttributeError, match=r"it is called Broken\.good here"):
        _ = Broken().well  # type: ignore[attr-defined]


def test_prompts_are_still_copied_and_pickled() -> None:
    """The table is no part of a prompt."""
    prompt = Prompt("travel").use("miami")

    assert prompt == copy.deepcopy(prompt) == pickle.loads(pickle.dumps(prompt))
