"""What a machine can run is counted as a CUDA program would."""

import importlib.util
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from machine.faked_programs import put
from multicard.config.cluster import Cluster, machine_for
from multicard.programs.machine import Machine, triton_unsupported_reason

PLAIN = """\
GPU 0: NVIDIA H100 (UUID: GPU-aaaa1111-0000)
GPU 1: NVIDIA H100 (UUID: GPU-bbbb2222-0000)
"""
SLICED = f"{PLAIN}  MIG 1g.12gb     Device  0: (UUID: MIG-cccc3333-0000)\n"


@pytest.fixture
def nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in that lists what is in the file `listing` beside it."""
    put(tmp_path, "nvidia-smi", f'[ "$1" = -L ] && cat {tmp_path}/listing')
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    return tmp_path


@pytest.mark.parametrize(
    ("listing", "visible", "count", "why"),
    [
        (PLAIN, None, 2, None),
        (PLAIN, "", 0, 'CUDA_VISIBLE_DEVICES is ""'),
        (PLAIN, "1", 1, 'CUDA_VISIBLE_DEVICES is "1"'),
        (PLAIN, "0,1,2,3", 2, None),
        (PLAIN, "-1", 0, 'CUDA_VISIBLE_DEVICES is "-1"'),
        (PLAIN, "GPU-bbbb2222-0000", 1, 'CUDA_VISIBLE_DEVICES is "GPU-bbbb2222-0000"'),
        (SLICED, None, 1, "CUDA shows a process one slice of a partitioned GPU (MIG)"),
        ("", "0,1", 0, None),
    ],
)
def test_gpus_count_that_are_there_and_may_be_seen(
    nvidia_smi: Path, monkeypatch: pytest.MonkeyPatch, listing: str, visible: str | None, count: int, why: str | None
) -> None:
    (nvidia_smi / "listing").write_text(listing)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    found = Machine.here()
    assert (found.gpus, found.hidden_gpus) == (count, why)


def test_gpus_that_no_nvidia_smi_lists_do_not_count(nvidia_smi: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    put(nvidia_smi, "nvidia-smi", "echo NVIDIA-SMI has failed; exit 9")
    assert Machine.here().gpus == 0


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder of programs, empty, on a machine whose Python has its headers."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "include").mkdir()
    (tmp_path / "include" / "Python.h").touch()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(sysconfig, "get_paths", lambda **_: {"include": str(tmp_path / "include")})
    return tmp_path / "bin"


def test_triton_takes_the_compilers_that_it_looks_for_and_the_headers_of_python(
    programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert triton_unsupported_reason() == "a C compiler, none found (gcc, clang)"
    (programs / "mine").touch(0o755)
    assert "a C compiler" in triton_unsupported_reason()
    monkeypatch.setenv("CC", "mine")
    assert triton_unsupported_reason() is None
    (tmp_path / "include" / "Python.h").unlink()
    missing = f"the headers of Python, not found in {tmp_path}/include (Debian: apt install python3-dev)"
    assert triton_unsupported_reason() == Machine.here().triton == missing
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert triton_unsupported_reason() == "the package triton, which is not installed"


def test_what_runs_meet_on_a_cluster_is_what_is_stated_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Machine, "here", classmethod(lambda cls: cls(cpus=1, gpus=0, hidden_gpus="hidden; show them")))
    assert machine_for(None).hidden_gpus == "hidden; show them"
    node = machine_for(Cluster(nodes=3, cpus_per_node=64, gpus_per_node=8, gpu_memory_gb=80))
    assert (node.nodes, node.cpus, node.gpus, node.gpu_memory_bytes) == (3, 64, 8, 80 * 10**9)
    assert node.hidden_gpus is None, "those of the machine that plans are no matter"


@pytest.fixture
def squeue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in that knows of one job, on three nodes."""
    put(tmp_path, "squeue", '[ "$*" = "--noheader --jobs=7 --format=%D" ] && echo 3')
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")


@pytest.mark.usefixtures("squeue")
@pytest.mark.parametrize(
    ("variables", "nodes"),
    [
        ({}, 1),
        ({"SLURM_JOB_ID": "7"}, 3),
        ({"SLURM_JOB_ID": "8"}, 1),
        ({"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "2"}, 2),
        ({"SLURM_JOB_NUM_NODES": "2"}, 1),
    ],
)
def test_a_job_of_slurm_knows_its_nodes(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], nodes: int) -> None:
    for name in ("SLURM_JOB_ID", "SLURM_JOB_NUM_NODES"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert Machine.here().nodes == nodes


@pytest.mark.parametrize(("job_above", "nodes"), [("7", "2 None"), ("8", "1 squeue ended with 1, saying: no")])
def test_a_job_of_slurm_knows_its_nodes_by_its_script_while_the_controller_is_away(
    tmp_path: Path, job_above: str, nodes: str
) -> None:
    """As Snakemake's plugin starts a run on several nodes: below the script of the job, without Slurm's variables."""
    put(tmp_path, "squeue", "echo no >&2; exit 1")
    program = "from multicard.programs.machine import Machine as M; m = M.here(); print(m.nodes, m.unanswered)"
    below = f"env -u SLURM_JOB_NUM_NODES SLURM_JOB_ID=7 {sys.executable} -c '{program}'; exit $?"
    above = {"SLURM_JOB_ID": job_above, "SLURM_JOB_NUM_NODES": "2", "PATH": f"{tmp_path}:/usr/bin:/bin"}
    done = subprocess.run(["sh", "-c", below], env=os.environ | above, capture_output=True, text=True, check=True)
    assert done.stdout == f"{nodes}\n"
