"""Schemas written by hand for tests of the strategies, and a search for examples that have given features."""

from collections.abc import Callable, Iterable, Set
from contextlib import suppress
from typing import TypeVar

from hypothesis import Phase, given, seed, settings
from hypothesis.strategies import SearchStrategy

RICH = """
<schema name="travel" version="2.1">
  <system>Plan trips.</system>
  <module name="plan" required="true">Stay <parameter name="days" length="6" required="true"/> days,
    <parameter name="style" length="12" default="calm" placeholder="any"/>.
    <module name="budget">Cheap.</module>
    <module name="visa" requires="/cities">Visa.</module>
  </module>
  <union default="calm">
    <module name="calm">Calm.</module>
    <module name="brisk">Brisk.</module>
  </union>
  <module name="cities">
    <union required="true">
      <module name="miami">Beach. <module name="art">Art.</module></module>
      <module name="rome">Forum <parameter name="q" length="8"/></module>
    </union>
  </module>
  <module name="night" excludes="calm" after="plan/budget">Late.</module>
  <module name="loud" requires="brisk"/>
  <parameter name="note" length="9"/>
</schema>
"""
"""Small enough for all selections to be listed, with a rule of every kind."""

RULED = """
<schema name="ruled">
  <module name="sun">Sun <parameter name="days" length="4" type="int"/>.</module>
  <module name="sea">Sea.</module>
  <module name="rain">Rain.</module>
  <module name="wind">Wind.</module>
  <rules>
    <require if="rain" then="wind or sea"/>
    <exclude modules="sun rain"/>
    <assert test="wind implies not sea" message="No wind by the sea."/>
    <choose modules="sun sea rain wind" min="1"/>
  </rules>
</schema>
"""
"""With a `rules` element of every form of rule."""

EMPTY = """
<schema name="empty" version="1.2"><module name="a">A.</module><module name="b"/></schema>
"""
"""A schema with a version, whose prompts need not have any text."""

WIDE = f"""
<schema name="wide">
  <union required="true"><module name="one">1</module><module name="two">2</module></union>
  {"".join(f'<module name="m{i}" excludes="n{i}">m</module><module name="n{i}">n</module>' for i in range(20))}
  <module name="top"><module name="part" required="true">p</module></module>
</schema>
"""
"""More than three billion selections: none are listed."""


SLOTTED = '<schema name="s"><module name="a">x<parameter name="p" length="40"/></module></schema>'
"""Room for any awkward text."""


_T = TypeVar("_T")
_ROUNDS, _EXAMPLES = 12, 200


class _EnoughError(Exception):
    """All wanted features have occurred."""


def occurring(strategy: SearchStrategy[_T], names: Callable[[_T], Iterable[str]], wanted: Set[str]) -> set[str]:
    """Return the names that examples give; stops as soon as all that are `wanted` have occurred."""
    found: set[str] = set()

    @settings(max_examples=_EXAMPLES, database=None, phases=[Phase.generate], report_multiple_bugs=False)
    @given(value=strategy)
    def collect(value: _T) -> None:
        found.update(names(value))
        if wanted <= found:
            raise _EnoughError

    with suppress(_EnoughError):
        for number in range(_ROUNDS):
            seed(number)(collect)()
    return found
