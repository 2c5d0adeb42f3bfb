"""The devices that tests run on: the CPU, and with `-m gpu` a CUDA device."""

import pytest
import torch

DEVICES = [
    "cpu",
    pytest.param(
        "cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
    ),
]
