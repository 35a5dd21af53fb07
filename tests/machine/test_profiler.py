"""Nsight Systems is tried by recording with it, and judged by what it leaves. Where said, nsys is a fake."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from faked_programs import GARBAGE, HANG, place

from changed_traces import change
from multicard.core.system import ask
from multicard.machine import profiler
from multicard.machine.probe import TorchFacts, TorchGpu, facts_here
from multicard.profilers import nsys

CPU = TorchFacts(torch="2.11.0", cuda="13.0")
GPU = replace(CPU, gpus=(TorchGpu("H100", 1),), can_compute=True)
VERSION = "NVIDIA Nsight Systems version "
OLD = f"{VERSION}2023.4.4.54-234433681190v0"
RECORDS = 'echo report > "$out"'

Look = Callable[..., tuple[str, str]]


@pytest.fixture
def look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Look:
    """Judge a fake nsys: the verdict on what was tried last, and why.

    Its scripts find the name of their output in $out, and only run where there is one.
    """
    monkeypatch.chdir(tmp_path)
    fake = place(tmp_path, monkeypatch, "nsys")

    def looked(
        facts: TorchFacts, profile: str = "exit 0", export: str = "exit 0", version: str = OLD, limit_s: float = 20
    ) -> tuple[str, str]:
        find_out = "for word; do case $word in --output=*) out=${word#--output=} ;; esac; done"
        cases = f"--version,) echo '{version}' ;; profile,?*) {profile} ;; export,?*) {export} ;;"
        fake("nsys", f"{find_out}\ncase $1,$out in {cases} esac")
        last = profiler.checks(facts, limit_s)[-1]
        return last.verdict, last.found

    return looked


def exported(path: Path, table: str, rows: int) -> str:
    """Script that leaves a database with rows of a table, as an export."""
    names = "CREATE TABLE StringIds AS SELECT 1 AS id, 'a name' AS value"
    change(path, names, f"CREATE TABLE {table} (start INT)", *[f"INSERT INTO {table} VALUES (1)"] * rows)
    return f'cat {path} > "$out"'


@pytest.mark.slow
@pytest.mark.nsys
def test_an_nsys_that_records_is_fine_here() -> None:
    found = {check.check: check for check in profiler.checks(CPU)}
    assert found["nsys recording"].verdict == "ok", found
    assert found["nsys recording"].found.startswith("recorded a program with its ranges (no GPU to try)")


@pytest.mark.gpu
@pytest.mark.nsys
def test_on_a_gpu_it_is_said_whether_kernels_are_recorded() -> None:
    found = {check.check: check for check in profiler.checks(facts_here())}["nsys recording"]
    assert "with its kernels" in found.found or found.verdict == "error"


def test_without_nsys_or_ranges_the_other_profiler_is_named(
    look: Look, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [only] = profiler.checks(CPU)
    assert (only.verdict, only.found) == ("warning", "no nsys on the PATH")
    assert "PyTorch's profiler" in only.do
    with monkeypatch.context() as patch:
        patch.setattr(nsys, "cuda_of_torch", lambda _python: nsys.BUILT_WITHOUT_CUDA)
        assert look(CPU) == ("warning", "torch has no NVTX, since it was built without CUDA")  # there is nothing to try
    for script, limit_s in ((GARBAGE, 20), (HANG, 0.3)):
        monkeypatch.setattr(nsys, "ask", lambda command, _limit_s, limit_s=limit_s: ask(command, limit_s))
        place(tmp_path, monkeypatch, "nsys")("nsys", script)
        [only] = profiler.checks(CPU)
        assert (only.verdict, "prints no version" in only.found) == ("error", True)


@pytest.mark.parametrize(
    ("version", "cuda", "problem"),
    [
        ("2023.4.4.54-234433681190v0", "13.2", "2023.4.4.54 is older than 2025.6.3, which came with CUDA 13.2"),
        ("2026.3.2.476-263238834031v0", "14.0", "2026.3.2.476 came with CUDA 13.4"),
    ],
)
def test_an_nsys_made_for_an_older_cuda_is_a_warning_with_a_remedy(
    look: Look, version: str, cuda: str, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nsys, "cuda_of_torch", lambda _python: cuda)
    look(GPU, version=VERSION + version)
    found = profiler.checks(GPU)[0]
    assert (found.check, found.verdict) == ("nsys", "warning")
    assert found.found == f"nsys {problem}; torch uses {cuda}"
    assert found.do.startswith("install a newer one (docs/cluster.md); until then runs are recorded by PyTorch's")


def test_a_recording_counts_by_its_report_and_not_by_its_exit_code(look: Look, tmp_path: Path) -> None:
    assert look(CPU) == ("error", "fails: nsys left no report")
    assert "importer is missing" in look(CPU, 'echo raw > "${out%.nsys-rep}.qdstrm"')[1]
    assert not Path(".qdstrm").exists()
    export = exported(tmp_path / "made.sqlite", "NVTX_EVENTS", 1)
    verdict, found = look(CPU, f"{RECORDS}; exit 143", export)
    assert (verdict, found.startswith("recorded a program")) == ("ok", True)
    assert look(CPU, HANG, limit_s=0.5) == ("error", "fails: did not end within 0.5 s")


@pytest.mark.parametrize(("rows", "expected"), [(3, "ok"), (0, "error")])
def test_on_gpus_the_kernels_must_be_in_the_report(look: Look, tmp_path: Path, rows: int, expected: str) -> None:
    verdict, found = look(GPU, RECORDS, exported(tmp_path / "made.sqlite", "CUPTI_ACTIVITY_KIND_KERNEL", rows))
    assert (verdict, "kernel" in found) == (expected, True)


@pytest.mark.parametrize("export", ["exit 0", 'echo garbage > "$out"', HANG])
def test_a_report_that_does_not_export_is_wrong(look: Look, export: str) -> None:
    verdict, found = look(CPU, RECORDS, export, limit_s=1 if export == HANG else 20)
    assert (verdict, found.startswith("fails: ")) == ("error", True)
