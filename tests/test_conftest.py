"""Under CI a test gets the same examples, whichever tests ran before it."""

import sys

import pytest

from tests import conftest


def test_no_module_is_left_to_load_under_ci(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What Hypothesis takes constants from is loaded before the first test, so no test can add to it."""
    loaded: list[str] = []
    monkeypatch.setenv("CI", "1")
    monkeypatch.setattr(conftest, "import_module", loaded.append)

    conftest.pytest_configure(request.config)

    ours = {name for name in sys.modules if name.split(".")[0] == "promptcache" and not name.endswith("__main__")}
    assert ours <= set(loaded)
    assert len(loaded) == len(set(loaded)) > 150
