"""IPython shows layouts, plans and answers as pictures."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest
from lxml import html

from promptcache.decode import Completion
from promptcache.picture.notebook import VIEWS
from tests.layout.samples import plan_of

SCHEMA = """<schema name="trip"><system>Be brief.</system>
<module name="plan" required="true">Trip of <parameter name="days" length="8"/> &lt;b&gt;days</module>
<union name="city"><module name="rome">Rome</module><module name="miami">Miami</module></union></schema>"""
PLAN = plan_of(SCHEMA, '<prompt schema="trip"><plan days="two"/><rome/>Go.</prompt>')


def shown(name: str, value: Any) -> html.HtmlElement:
    """The view of a value, and no element in it that could run or load something."""
    view = next(view for path, view in VIEWS.items() if path.endswith(f".{name}"))
    element = html.fragment_fromstring(view(value))
    assert element.get("class") == "promptcache"
    assert not {"script", "img", "link", "a", "i"} & {each.tag for each in element.iter()}
    return element


@pytest.mark.parametrize("path", VIEWS)
def test_views_are_registered_for_types_that_exist(path: str) -> None:
    """IPython compares these names with the module and the name of a type."""
    module, _, name = path.rpartition(".")

    found = getattr(import_module(module), name)

    assert (found.__module__, found.__name__) == (module, name)


def test_a_layout_and_a_plan_show_their_lines() -> None:
    """Every module has a line; a plan fades those that it does not use."""
    for name, value, faded in (("Layout", PLAN.layout, set()), ("Plan", PLAN, {"miami"})):
        names = {each.get("title"): each.get("class") for each in shown(name, value).find_class("name")}
        assert {"plan", "rome", "miami"} <= names.keys()
        assert {each for each, style in names.items() if "faded" in style.split()} == faded


def test_importing_the_package_in_ipython_registers_the_views() -> None:
    """A user of a notebook does nothing but import the package; elsewhere the pictures are not even loaded."""
    code = """
import sys, types
if {running}:
    sys.modules["IPython"] = types.ModuleType("IPython")
    def register(module, name, view):
        print(f"{{module}}.{{name}}")
    formatter = types.SimpleNamespace(for_type_by_name=register)
    formatters = types.SimpleNamespace(formatters={{"text/html": formatter}})
    sys.modules["IPython"].get_ipython = lambda: types.SimpleNamespace(display_formatter=formatters)
import promptcache
print("promptcache.picture" in sys.modules)
"""
    told = [
        subprocess.run([sys.executable, "-c", code.format(running=running)], capture_output=True, text=True, check=True)
        for running in (True, False)
    ]

    assert [each.stdout.split() for each in told] == [[*VIEWS, "True"], ["False"]]


def test_an_answer_shows_its_text_and_what_it_cost() -> None:
    """The answer is shown as text, for any content."""
    usage = SimpleNamespace(num_reused_tokens=20, num_new_tokens=5, num_generated_tokens=7)
    told = SimpleNamespace(usage=usage, level="exact", lossy=False, timing=SimpleNamespace(ttft_s=0.012))
    answer = SimpleNamespace(text="<i>Yes</i>\n\x1b", plan=PLAN, finish_reason="stop", **vars(told))
    words = shown("Completion", answer).text_content()

    assert "<i>Yes</i>\ufffd" in words
    assert "20 tokens reused · 5 new · 7 generated · level exact · first token after 12 ms" in words
    assert vars(answer).keys() <= Completion.__dataclass_fields__.keys()
