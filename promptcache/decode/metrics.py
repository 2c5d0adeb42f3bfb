"""Figures that a service reports. They depend on no metrics library."""

from __future__ import annotations


class ServiceObserver:
    """Receives figures of a service. A subclass overrides the methods that it needs.

    The methods are called in the service's thread, in every step. They must return soon and raise nothing.
    """

    def admitted(self, waited_s: float) -> None:
        """Called with the time that a request waited until it was admitted."""

    def stepped(self, step_s: float, num_rows: int) -> None:
        """Called with the time of one step, sampling included, and the number of requests in it."""

    def step_failed(self) -> None:
        """Called after a step has failed; its requests end with an error."""
