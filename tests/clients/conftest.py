"""Settings of a framework, which reads them when it is imported."""

import os

os.environ["LANGSMITH_TRACING"] = "false"
