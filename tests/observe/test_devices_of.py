"""The devices that the observer takes a rank to compute on."""

from pathlib import Path

import pytest
import torch

from job_files import make_job_file
from multicard.observe.process import devices_of


def test_all_gpus_count_as_used_only_if_the_program_marks_the_begin_of_its_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _index: object())
    job = make_job_file(tmp_path, device="cuda", devices=2, ranks=1, ranks_per_node=1).observe
    # Steps that end by marks, in a process that has never used a GPU.
    assert devices_of(None, job) == [torch.device("cpu")]
    both = [torch.device("cuda", 0), torch.device("cuda", 1)]
    assert devices_of(None, job, has_marked_training=True) == both
