"""Settings of a framework, which reads them when it is imported."""

from __future__ import annotations

import os

os.environ["LANGSMITH_TRACING"] = "false"
