"""What goes wrong on GPUs ends with the right outcome and reason, under the real launcher."""

from pathlib import Path
from typing import Any

import pytest
from emulated_jobs import Job, run_on_gpus

from conftest import TINY
from emulated_gpu.fixtures import EmulatedGpus
from multicard.core.files import read_json

pytestmark = [pytest.mark.emulated, pytest.mark.slow]

ON_TWO: dict[str, Any] = TINY | {"device": "cuda", "devices": 2, "strategy": "ddp-ds", "profiler": "none"}


def record_of(emulated: EmulatedGpus, job: Job, **settings: Any) -> dict[str, Any]:
    run_on_gpus(emulated, [job], preload=(), **settings)
    return read_json(job.folder / "run.json")


@pytest.mark.rare  # tests/emulated/test_emulated_scripts.py has one of a script every day
def test_out_of_memory_on_one_of_two_gpus_is_the_outcome_with_its_numbers(
    emulated: EmulatedGpus, digits: Path, tmp_path: Path
) -> None:
    parameters = ON_TWO | {"width_mult": 1.0, "image_size": 32, "batch_size": 64, "steps_per_epoch": 4}
    record = record_of(emulated, Job(parameters, digits, tmp_path / "run"), gpus=2, gpu_gib="16,0.36")
    assert record["outcome"] == "out_of_memory", record["reason"]
    assert (record["reason"]["code"], record["reason"]["rank"]) == ("out_of_memory", 1)
    for part in ("Tried to allocate", "GPU 1 has a total capacity of 368"):  # 0.36 GiB are 368.64 MiB
        assert part in record["reason"]["message"]


def test_a_rank_killed_while_others_wait_for_it_in_a_collective_is_named(
    emulated: EmulatedGpus, digits: Path, tmp_path: Path
) -> None:
    job = Job(ON_TWO, digits, tmp_path / "run", program="killed_in_a_collective")
    record = record_of(emulated, job, gpus=2)
    assert record["outcome"] == "failed"
    assert record["reason"] == {"code": "killed", "rank": 1, "signal": "SIGKILL"}
