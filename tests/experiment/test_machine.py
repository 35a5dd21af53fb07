"""What a machine can run is counted as a CUDA program would."""

import importlib.util
import os
import sysconfig
from dataclasses import replace
from pathlib import Path

import pytest

from multicard.experiment import machine
from multicard.experiment.machine import Machine, triton_unsupported_reason
from multicard.experiment.runs import Run
from multicard.workloads.vision.parameters import VisionParameters

PLAIN = """\
GPU 0: NVIDIA H100 (UUID: GPU-aaaa1111-0000)
GPU 1: NVIDIA H100 (UUID: GPU-bbbb2222-0000)
"""
SLICES = """\
  MIG 1g.12gb     Device  0: (UUID: MIG-cccc3333-0000)
  MIG 1g.12gb     Device  1: (UUID: MIG-dddd4444-0000)
"""
MIXED = PLAIN + SLICES  # slices of the second
SLICED = PLAIN.splitlines()[0] + "\n" + SLICES

ONE_SLICE = "CUDA shows a process one slice of a partitioned GPU (MIG) and no other GPU; select whole GPUs"


def selects(value: str, how: str) -> str:
    return f'CUDA_VISIBLE_DEVICES is "{value}", which selects {how}'


def nowhere(value: str, entry: str) -> str:
    return selects(value, f'up to "{entry}", of which nvidia-smi -L lists none; correct it')


@pytest.fixture
def nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in that lists what is in the file `listing` beside it."""
    (tmp_path / "listing").write_text(PLAIN)
    program = tmp_path / "nvidia-smi"
    program.write_text(f'#!/bin/sh\n[ "$1" = -L ] && cat {tmp_path}/listing\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    return program


# Counts as PyTorch's own tests have them (test_cuda.py, test_parse_visible_devices and the two after
# it), of slices as in NVIDIA's "MIG User Guide", "CUDA Device Enumeration".
@pytest.mark.parametrize(
    ("listing", "visible", "count", "why"),
    [
        (PLAIN, None, 2, None),
        (PLAIN, "", 0, selects("", "none; unset it")),
        (PLAIN, "0", 1, selects("0", "no more; extend it")),
        (PLAIN, "1gpu2,0ampere", 2, None),
        (PLAIN, "0,1,2,3", 2, None),
        (PLAIN, "2,0", 0, nowhere("2,0", "2")),  # CUDA looks no further than the first that is not there
        (PLAIN, "0,0", 0, selects("0,0", 'none, as it repeats "0"; correct it')),
        (PLAIN, "GPU-bbbb2222-0000", 1, selects("GPU-bbbb2222-0000", "no more; extend it")),
        (PLAIN, "GPU-bbbb,GPU-aaaa", 2, None),
        (PLAIN, "0,-1,1", 1, nowhere("0,-1,1", "-1")),
        (PLAIN, "none", 0, nowhere("none", "none")),
        (PLAIN, "GPU-bbbb,0", 1, nowhere("GPU-bbbb,0", "0")),
        (PLAIN, "GPU-", 0, selects("GPU-", 'up to "GPU-", of which nvidia-smi -L lists 2; correct it')),
        (SLICED, None, 1, ONE_SLICE),
        (SLICED, "GPU-aaaa", 1, ONE_SLICE),
        (SLICED, "MIG-cccc3333-0000,MIG-dddd4444-0000", 1, ONE_SLICE),
        (SLICED, "MIG-eeee", 0, nowhere("MIG-eeee", "MIG-eeee")),
        (MIXED, None, 1, ONE_SLICE),
        (MIXED, "0", 1, selects("0", "no more; extend it")),
        (MIXED, "0,1", 1, ONE_SLICE),
        (MIXED, "MIG-dddd", 1, ONE_SLICE),
        ("", "0,1", 0, None),
    ],
)
def test_gpus_count_that_are_there_and_may_be_seen(
    nvidia_smi: Path, monkeypatch: pytest.MonkeyPatch, listing: str, visible: str | None, count: int, why: str | None
) -> None:
    nvidia_smi.with_name("listing").write_text(listing)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    found = Machine.here()
    assert (found.gpus, found.hidden_gpus) == (count, why)


def test_gpus_that_no_nvidia_smi_lists_do_not_count(
    nvidia_smi: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    nvidia_smi.write_text("#!/bin/sh\necho NVIDIA-SMI has failed\nexit 9\n")
    assert Machine.here().gpus == 0
    monkeypatch.setattr(machine, "DEVICES", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path / "none"))
    assert (Machine.here().gpus, Machine.here().hidden_gpus) == (0, None)
    (tmp_path / "nvidia0").touch()  # as the driver makes one for each GPU
    found = Machine.here()
    assert (found.gpus, found.hidden_gpus) == (0, "nvidia-smi, which lists them, is not on the PATH; add it")


def test_a_run_that_needs_hidden_gpus_is_told_what_to_do() -> None:
    one = Machine(cpus=8, gpus=1, hidden_gpus="they are hidden; unhide them")
    two = VisionParameters(strategy="ddp", devices=2)
    assert Run("r", two).unsupported_reason(one) == "needs 2 devices, 1 found: they are hidden; unhide them"
    assert Run("r", VisionParameters()).unsupported_reason(one) is None
    on_cpus = VisionParameters(strategy="ddp", devices=16, device="cpu")
    assert Run("r", on_cpus).unsupported_reason(one) == "needs 16 devices, 8 found"
    none = replace(one, gpus=0)
    assert Run("r", two).unsupported_reason(none) == "needs a CUDA GPU, none found: they are hidden; unhide them"


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder of programs, empty, on a machine whose Python has its headers."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "include").mkdir()
    (tmp_path / "include" / "Python.h").touch()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    for name in ("CC", "CPATH", "C_INCLUDE_PATH"):
        monkeypatch.delenv(name, raising=False)
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
    (programs / "clang").touch(0o755)
    monkeypatch.setenv("CC", "another")  # it looks for no other then
    assert triton_unsupported_reason() == "a C compiler, and CC=another is none"
    monkeypatch.delenv("CC")
    assert triton_unsupported_reason() is None
    (tmp_path / "include" / "Python.h").rename(tmp_path / "Python.h")
    missing = f"the headers of Python, not found in {tmp_path}/include (Debian: apt install python3-dev)"
    assert triton_unsupported_reason() == Machine.here().triton == missing
    monkeypatch.setenv("CPATH", f"/elsewhere:{tmp_path}")  # where compilers look too
    assert triton_unsupported_reason() is None
    with monkeypatch.context() as patched:
        patched.setattr(importlib.util, "find_spec", lambda name: None)
        found = triton_unsupported_reason()
    assert found == "the package triton, which is not installed"
