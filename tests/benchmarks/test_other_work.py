"""Benchmarks over several processes report what other programs did meanwhile."""

from __future__ import annotations

from types import SimpleNamespace

import psutil
import pytest

from benchmarks.other_work import OtherWork


def test_other_work_leaves_out_this_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """The share is the processor time of the machine, less that of this process and of those that it has started."""
    now = 100.0
    machine = SimpleNamespace(user=50.0, nice=1.0, system=7.0, idle=40.0, irq=0.0, softirq=1.0, steal=0.0, iowait=9.0)
    own = [5.0, 1.0, 2.0, 0.0, 0.5]
    monkeypatch.setattr("benchmarks.other_work.time.perf_counter", lambda: now)
    monkeypatch.setattr(psutil, "cpu_count", lambda: 2)
    monkeypatch.setattr(psutil, "cpu_times", lambda: machine)
    monkeypatch.setattr(psutil, "Process", lambda: SimpleNamespace(cpu_times=lambda: tuple(own)))
    work = OtherWork()

    now += 10  # 20 seconds of the cores
    machine.user += 9
    machine.idle += 8
    machine.steal += 1
    own[0] += 3
    own[2] += 2

    assert work.share == pytest.approx((9 + 1 - 3 - 2) / 20)
