"""The limit of connections, and of open files."""

from __future__ import annotations

import subprocess
import sys

import pytest

_SCRIPT = """
import resource
from promptcache.diagnostics import InvalidValue
from promptcache.server.connections import raise_file_limit
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 1000))
raise_file_limit(512)
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
try:
    raise_file_limit(1000)
except InvalidValue as error:
    print(error)
"""


@pytest.mark.process
def test_the_soft_limit_of_files_is_raised_and_a_low_hard_limit_is_refused() -> None:
    """Connections and the files of the store fit; otherwise the message has both numbers."""
    ran = subprocess.run([sys.executable, "-c", _SCRIPT], capture_output=True, text=True, check=True)

    assert ran.stdout.splitlines() == [
        "1000",
        "1000 connections need 1381 open files, and this process may have 1000 (ulimit -Hn)",
    ]
