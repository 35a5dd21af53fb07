"""The tuning program of one rank: `python -m multicard.workloads.llm.train --job FILE`, alone or under torchrun."""

import os
import shutil
from pathlib import Path
from typing import Any

import torch

from multicard.core.layout import STEPS, rank_file
from multicard.record.capture import Capture
from multicard.record.others import OthersMeter
from multicard.record.profiled_window import LEAST_SETTLING
from multicard.record.rank import bind_rank, run_rank
from multicard.record.recorder import Recorder
from multicard.record.visible import rank_devices
from multicard.workloads.llm.observer import Observer
from multicard.workloads.llm.parameters import LlmParameters
from multicard.workloads.llm.prepare_model import read_model
from multicard.workloads.llm.prepare_texts import read_texts

WEIGHTS = (".safetensors", ".pt", ".bin")


def tune(job: dict[str, Any], p: LlmParameters, record: dict[str, Any]) -> dict[str, Any]:
    """Run the windows of one rank through the back end; leave its steps in the scratch, give what is to be recorded."""
    scratch = Path(job["scratch"])
    model, texts = read_model(Path(job["model"])), read_texts(Path(job["data"]))
    record["data"] = {key: texts[key] for key in ("dataset", "source", "kind", "train_samples", "files")}
    record["model"] = {key: model[key] for key in ("model", "architecture", "parameters", "files")}
    record["binding"] = bind_rank(p)
    torch.set_num_threads(p.threads)
    rank, [device] = record["rank"], rank_devices(p)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    _stay_offline(scratch, rank)
    from multicard.workloads.llm import torchtune_backend

    capture = Capture(job["profiler"], scratch, rank, device)
    recorder = Recorder(rank, device, capture)
    recorder.clock.reserve(p.total_steps * p.gradient_accumulation_steps)
    others = OthersMeter(job.get("launcher") if rank % p.ranks_per_node == 0 else None)
    observer = Observer(p, rank, recorder, capture, others)
    train_file, output = Path(job["data"]) / texts["files"][0]["name"], scratch / "output"
    if rank == 0:
        record["data"]["tokens_per_sample"] = torchtune_backend.tokens_per_sample(p, model, texts, train_file)
    try:
        steps_per_pass = torchtune_backend.tune(p, model, texts, train_file, observer, output)
    finally:
        recorder.write(scratch / rank_file(STEPS, rank))
    epochs = {row["epoch"] for row in recorder.rows if row["window"] == "profiled"}
    found = {
        "steps_per_pass": steps_per_pass,
        # The recipes load in the training process: no batch is read ahead, so the window just follows the measured one.
        "profiled_window": {
            "warmup_steps": 0,
            "settling_steps": LEAST_SETTLING,
            "profiled_steps": p.profiled_steps,
            "crosses_pass": len(epochs) > 1,
        },
        "attention": observer.attention,
        "held_bytes": observer.held.record() if observer.held else None,
        "windows": recorder.windows,
        "host_conditions": others.record(),
    }
    if rank == 0 and p.save != "none":
        weights = [path for path in output.rglob("*") if path.suffix in WEIGHTS]
        found["saved"] = {"time_s": observer.save_time_s, "bytes": sum(path.stat().st_size for path in weights)}
        if p.save == "keep":
            shutil.move(output, job["keep"])
    return found


def _stay_offline(scratch: Path, rank: int) -> None:
    """Have the libraries of Hugging Face fetch nothing, and write into the scratch folder."""
    os.environ |= {
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
        "HF_HOME": str(scratch / f"huggingface-{rank}"),
        "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
        "TIKTOKEN_CACHE_DIR": "",  # else tiktoken keeps tokenizers by their path, whatever becomes of the file
    }


if __name__ == "__main__":
    run_rank(LlmParameters.model_validate, tune)
