"""What a rank is, by what its launcher told it, and the driver that it ran on."""

from pathlib import Path

import pytest

from multicard.record.environment import driver
from multicard.record.observe.ranks import RANKS, SIZES, rank_of_process, world_size


@pytest.mark.parametrize(
    ("told", "rank", "size"),
    [
        ({"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4", "SLURM_PROCID": "0", "SLURM_NTASKS": "1"}, 3, 4),
        ({"PMI_RANK": "1", "PMI_SIZE": "2"}, 1, 2),
        ({"SLURM_PROCID": "5", "SLURM_NTASKS": "6"}, 5, 6),
        ({"RANK": "1", "WORLD_SIZE": "2", "PMI_RANK": "0", "PMI_SIZE": "1"}, 1, 2),  # torchrun on each node of an MPI
        ({"RANK": "", "SLURM_PROCID": "-1"}, 0, 1),
    ],
)
def test_without_a_process_group_ranks_are_those_that_the_launcher_told(
    told: dict[str, str], rank: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Variables by the manuals of Open MPI (mpirun), MPICH (PMI) and Slurm (srun)."""
    for name in (*RANKS, *SIZES):
        monkeypatch.delenv(name, raising=False)
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    assert (rank_of_process(), world_size()) == (rank, size)


@pytest.mark.parametrize(
    ("line", "version"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023", "535.104.05"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build  (dvs@host)", "580.65.06"),
        ("something else", None),
        (None, None),
    ],
)
def test_the_driver_is_the_one_that_linux_shows(line: str | None, version: str | None, tmp_path: Path) -> None:
    if line:
        (tmp_path / "version").write_text(f"{line}\nGCC version:  gcc version 12.2.0 (Debian 12.2.0-14)\n")
    assert driver(tmp_path / "version") == version
