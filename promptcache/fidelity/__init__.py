"""Fidelity: how far a schema's cached requests are from ordinary prefill, and which settings bring them nearer.

    from promptcache.fidelity import measure_fidelity

    fidelity = measure_fidelity(engine, "schemas/support.xml")
    assert fidelity.as_it_is.divergence.value <= 0.05  # nats

`Engine.audit` compares one prompt.
"""

from promptcache.fidelity.measure import measure_fidelity
from promptcache.fidelity.report import Fidelity, Interval, PromptFidelity, SettingFidelity, clustered_interval
from promptcache.fidelity.settings import AS_IT_IS, PROMOTED, SETTINGS, Setting

__all__ = [
    "AS_IT_IS",
    "PROMOTED",
    "SETTINGS",
    "Fidelity",
    "Interval",
    "PromptFidelity",
    "Setting",
    "SettingFidelity",
    "clustered_interval",
    "measure_fidelity",
]
