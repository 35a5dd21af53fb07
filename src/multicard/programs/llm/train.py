"""Tune a language model by a library, alone or under torchrun.

    python -m multicard.programs.llm.train --data=FOLDER --model-folder=FOLDER --scratch=FOLDER --device=cpu

`--data` and `--model-folder` are the folders of a prepared data set and model, `--scratch` is one for files that the
library writes; the other options are the parameters of docs/parameters.md. It trains until multicard's observer ends
it: without the observer, for ever.
"""

import argparse
import os
from pathlib import Path

import torch

from multicard.observe.record.binding import bind_rank
from multicard.observe.record.visible import rank_devices
from multicard.programs.llm.libraries import LIBRARIES
from multicard.programs.llm.parameters import LlmParameters
from multicard.programs.main import run_program
from multicard.programs.options import parse_options
from multicard.programs.provenance import ModelProvenance, TextProvenance, read_unchanged


def main() -> None:
    """Run one rank."""
    parser = argparse.ArgumentParser(description="Tune a language model.")
    parser.add_argument("--data", type=Path, required=True, help="folder of a prepared data set")
    parser.add_argument("--model-folder", type=Path, required=True, help="folder of a prepared model")
    parser.add_argument("--scratch", type=Path, required=True, help="folder for files that the library writes")
    p, arguments = parse_options(parser, LlmParameters)
    # They raise `UserError` if a file is missing or has changed since it was prepared.
    model = read_unchanged(arguments.model_folder, ModelProvenance)
    texts = read_unchanged(arguments.data, TextProvenance)
    bind_rank(p)
    torch.set_num_threads(p.threads)
    [device] = rank_devices(p)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    _stay_offline(arguments.scratch)
    train_file = arguments.data / texts.files[0].name
    LIBRARIES[p.library].tune(p, model, texts, train_file, output=arguments.scratch / "output")


def _stay_offline(scratch: Path) -> None:
    """Set variables so that Hugging Face's libraries download nothing and write into the scratch folder."""
    os.environ |= {
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
        "HF_HOME": str(scratch / f"huggingface-{os.environ.get('RANK', '0')}"),
        "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
        # Empty: no cache. tiktoken caches a tokenizer by the path of its file, and would not notice a changed file.
        "TIKTOKEN_CACHE_DIR": "",
    }


if __name__ == "__main__":
    run_program(main)
