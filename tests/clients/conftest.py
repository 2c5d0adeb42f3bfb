"""Settings of frameworks, which read them when they are imported."""

from __future__ import annotations

import os

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # litellm would load a list of prices
os.environ["LANGSMITH_TRACING"] = "false"
