"""The tuning program of one rank: `python -m multicard.workloads.llm.train --job FILE`, alone or under torchrun.

FILE is job.json of `multicard.launch.job`; this program reads of it `parameters`, `model`, `data` and `scratch`.
"""

import os
from pathlib import Path

import torch

from multicard.core.job_file import JobFile
from multicard.record.binding import bind_rank
from multicard.record.visible import rank_devices
from multicard.workloads._program import run_program
from multicard.workloads.llm.parameters import LlmParameters
from multicard.workloads.provenance import ModelProvenance, TextProvenance, read_unchanged


def main(job: JobFile) -> None:
    """Run one rank of a job."""
    p = LlmParameters.model_validate(job.parameters)
    # They raise `UserError` if a file is missing or has changed since it was prepared.
    if job.model is None:
        raise ValueError("job.json, model: found null, expected the folder of a prepared model")
    model = read_unchanged(job.model, ModelProvenance)
    texts = read_unchanged(job.data_folder, TextProvenance)
    bind_rank(p)
    torch.set_num_threads(p.threads)
    [device] = rank_devices(p)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    _stay_offline(job.scratch)
    from multicard.workloads.llm import torchtune_backend

    train_file = job.data_folder / texts.files[0].name
    torchtune_backend.tune(p, model, texts, train_file, output=job.scratch / "output")


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
