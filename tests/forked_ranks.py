"""Ranks of tuning jobs, forked from a process that has imported torchtune.

Each is a process of its own that runs the workload's program as torchrun would start it, only without the seconds in
which torchrun starts and PyTorch is imported. It is for tests of what is trained; tests of how jobs start, end and fail
start them as users do.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from emulated.run_jobs import FORKS, run_forked
from multicard.launch import job

PRELOADED = [
    "multicard.workloads.llm.train", "datasets", "omegaconf", "torchtune.config", "torchtune.datasets",
    "torchtune.models.llama3_2", "torchtune.modules.peft", "torchtune.rlhf", "torchtune.training",
]  # fmt: skip


@contextmanager
def forked_ranks() -> Iterator[None]:
    """Let jobs that are run in this context fork their ranks."""
    FORKS.set_forkserver_preload(PRELOADED)
    with patch.object(job, "run", run_forked):
        yield
