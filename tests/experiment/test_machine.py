"""What a machine can run is counted as a CUDA program would."""

import os
import sysconfig
from pathlib import Path

import pytest

from multicard.experiment.machine import Machine, triton_unsupported_reason

LISTING = """\
GPU 0: NVIDIA H100 (UUID: GPU-aaaa1111-0000)
GPU 1: NVIDIA H100 (UUID: GPU-bbbb2222-0000)
  MIG 1g.12gb     Device  0: (UUID: MIG-cccc3333-0000)
  MIG 1g.12gb     Device  1: (UUID: MIG-dddd4444-0000)
"""


@pytest.fixture
def nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in that lists two GPUs, one of them in parts."""
    (tmp_path / "listing").write_text(LISTING)
    program = tmp_path / "nvidia-smi"
    program.write_text(f'#!/bin/sh\n[ "$1" = -L ] && cat {tmp_path}/listing\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    return program


@pytest.mark.parametrize(
    ("visible", "count"),
    [
        (None, 2),
        ("", 0),
        ("-1", 0),
        ("0", 1),
        ("1, 0", 2),
        ("0,1,2,3", 2),
        ("2,0", 0),  # CUDA looks no further than the first that is not there
        ("0,-1,1", 1),
        ("0,0", 1),
        ("GPU-bbbb2222-0000", 1),
        ("GPU-bbbb,GPU-aaaa", 2),
        ("GPU-eeee", 0),
        ("MIG-cccc3333-0000,MIG-dddd4444-0000", 2),
        ("MIG-eeee", 0),
        ("none", 0),
    ],
)
@pytest.mark.usefixtures("nvidia_smi")
def test_gpus_count_that_are_there_and_may_be_seen(
    monkeypatch: pytest.MonkeyPatch, visible: str | None, count: int
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert Machine.here().gpus == count


def test_a_machine_without_gpus_has_none_whatever_may_be_seen(
    nvidia_smi: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvidia_smi.write_text("#!/bin/sh\necho NVIDIA-SMI has failed\nexit 9\n")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
    assert Machine.here().gpus == 0


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


@pytest.mark.parametrize("name", ["gcc", "clang", "mine"])
def test_triton_takes_the_compilers_that_it_looks_for(
    programs: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert triton_unsupported_reason() == "a C compiler, none found (gcc, clang)"
    (programs / name).touch(0o755)
    if name == "mine":
        assert "a C compiler" in triton_unsupported_reason()
        monkeypatch.setenv("CC", "mine")
    assert triton_unsupported_reason() is None
    monkeypatch.setenv("CC", "another")  # it looks for no other then
    assert triton_unsupported_reason() == "a C compiler, and CC=another is none"


def test_triton_needs_the_headers_of_python(programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (programs / "gcc").touch(0o755)
    (tmp_path / "include" / "Python.h").rename(tmp_path / "Python.h")
    missing = f"the headers of Python, not found in {tmp_path}/include (Debian: apt install python3-dev)"
    assert triton_unsupported_reason() == missing
    monkeypatch.setenv("CPATH", f"/elsewhere:{tmp_path}")  # where compilers look too
    assert triton_unsupported_reason() is None
