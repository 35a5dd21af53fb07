"""`multicard analyze --as-runs` from traces to the report: numbers follow from the synthetic traces by hand."""

import gzip
import json
import shlex
from pathlib import Path

import pandas as pd
import pytest

from adopted_traces import GEMM, trace
from console import multicard
from docs.code_blocks import blocks, shell_commands
from multicard import read_results
from recorded_runs import manifest_of

pytestmark = pytest.mark.slow

ONE, TWO = [20.0] * 7, [12.0] * 7  # milliseconds of iterations on one GPU and on two
COMMANDS = shell_commands("docs/traces.md")
[TABLE] = [block.text for block in blocks("docs/traces.md") if block.language == "text"]


def packed(path: Path) -> None:
    path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
    path.unlink()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a user with traces, after `multicard analyze --as-runs`."""
    folder = tmp_path_factory.mktemp("adopted") / "my traces"
    trace(folder / "one-gpu.sqlite", ONE)
    trace(folder / "two-gpus.sqlite", TWO, TWO)
    for rank in range(2):
        packed(trace(folder / "bf16" / f"rank{rank}.json", [10.0] * 7))
    packed(trace(folder / "bf16" / "one-gpu.json", ONE, kernels=[(1, GEMM)]))
    packed(trace(folder / "rank0-of-four.json", [8.0] * 7))
    (folder / "traces.csv").write_text(TABLE)
    for command in COMMANDS:
        done = multicard(*shlex.split(command)[1:], folder=folder)
        assert done.returncode == 0, done.stderr
    return folder


def measures(folder: Path) -> pd.DataFrame:
    return pd.read_csv(folder / "results-adopted/scenarios/adopted/measures.csv").set_index("run")


def run(devices: int, amp: str) -> str:
    return f"script_traces-d45238_cuda{devices}_launcher-traces_amp-{amp}_r1"


def test_numbers_are_those_of_the_traces(folder: Path) -> None:
    found = measures(folder)
    times = {run(1, "none"): 20.0, run(2, "none"): 12.0, run(2, "bf16"): 10.0, run(4, "none"): 8.0}
    assert (found["iteration_time_s"] * 1e3).dropna().to_dict() == pytest.approx(times)
    assert set(found["measured_steps"].dropna()) == {5}  # from the start of six steps to the start of the next
    rates = {name: 64 / time * 1e3 for name, time in times.items()}
    assert found["throughput_samples_per_s"].dropna().to_dict() == pytest.approx(rates)
    none = found[found["args.amp"] == "none"].set_index("devices")
    assert none["speedup"].to_dict() == pytest.approx({1: 1.0, 2: 20 / 12, 4: 20 / 8})
    assert none["efficiency"].to_dict() == pytest.approx({1: 1.0, 2: 20 / 12 / 2, 4: 20 / 8 / 4})
    unknown = ["peak_memory_bytes", "data_share", "energy_per_sample_j", "profiler_overhead", "data_s", "forward_s"]
    assert found[unknown].isna().all(axis=None)
    bare = found.loc[run(1, "bf16")]  # has no steps
    assert bare["outcome"] == "completed"
    assert bare[["iteration_time_s", "steps_per_s", "measured_steps", "steps_from"]].isna().all()
    assert len(pd.read_csv(folder / "results-adopted/figures/adopted/device_time.csv")) >= 5


def test_records_say_what_was_adopted_and_nothing_else(folder: Path) -> None:
    record = json.loads((folder / f"results-adopted/runs/{run(4, 'none')}/run.json").read_text())
    assert record["adopted"] | {"traces": None} == {
        "traces": None, "samples_per_step": 64, "warmup_steps": 0,
        "steps_from": "kernels of an optimizer", "steps": 6, "traced_devices": 1,
    }  # fmt: skip
    [file] = record["adopted"]["traces"]
    assert (file["name"], file["bytes"]) == ("rank0-of-four.json.gz", (folder / "rank0-of-four.json.gz").stat().st_size)
    assert record["outcome"] == "completed"
    for name in ("started", "ended", "exit_code", "host", "hardware", "versions", "variables"):
        assert record.get(name) is None, name


def test_figures_and_report_say_that_traces_were_adopted(folder: Path) -> None:
    drawn = sorted(path.stem for path in (folder / "results-adopted/figures/adopted").glob("*.svg"))
    assert {"iteration_time", "speedup", "step_times", "device_time", "kernel_classes", "collectives"} <= set(drawn)
    mark = "Adopted trace: 5 of 5 runs"
    for name in drawn:
        assert mark in (folder / f"results-adopted/figures/adopted/{name}.txt").read_text(), name
    page = (folder / "results-adopted/report.html").read_text()
    assert mark in page
    assert "steps from kernels of an optimizer, timed while a profiler recorded" in page
    assert (
        "Not all GPUs at work in the traces: 1 of 5 runs (1 of 4, whose times may not be those of the slowest)" in page
    )
    assert "no steps were found" in page
    verdicts = pd.read_csv(folder / "results-adopted/claims.csv")["verdict"]
    assert set(verdicts) == {"not measured here"}


def test_the_configuration_is_an_ordinary_one_that_launches_nothing(folder: Path) -> None:
    listed = multicard("run", "adopted.yaml", "--dry-run", folder=folder).stdout
    assert "6 runs" in listed
    assert "1 cannot: no trace of it was adopted" in listed
    assert "5 completed" in multicard("status", "adopted.yaml", folder=folder).stdout


def test_adopting_again_changes_nothing_unasked(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    before = (folder / "adopted.yaml").read_bytes()
    assert multicard("analyze", "--as-runs", "traces.csv").returncode == 0
    assert (folder / "adopted.yaml").read_bytes() == before
    assert read_results(folder / "adopted.yaml").measures["iteration_time_s"].notna().sum() == 4
    assert multicard("archive", "adopted.yaml").returncode == 0
    assert len(manifest_of(folder / "adopted.tar.gz").runs) == 5
    assert read_results(folder / "adopted.tar.gz").measures["iteration_time_s"].notna().sum() == 4
    other = folder / "other.csv"
    other.write_text("".join(TABLE.splitlines(keepends=True)[:3]))
    refused = multicard("analyze", "--as-runs", "other.csv")
    assert "adopted.yaml: exists and differs; --overwrite replaces it" in refused.stderr
    assert refused.returncode == 1
    assert (folder / "adopted.yaml").read_bytes() == before


def test_a_folder_of_the_users_is_not_taken_for_results(folder: Path, tmp_path: Path) -> None:
    report = tmp_path / "results-adopted" / "report.html"
    report.parent.mkdir()
    report.write_text("my own")
    done = multicard("analyze", "--as-runs", folder / "traces.csv", folder=tmp_path)
    refusal = "results-adopted: not results of multicard; rename it, or work in another folder\n"
    assert (done.returncode, done.stderr, report.read_text()) == (1, refusal, "my own")
    assert [path.name for path in tmp_path.iterdir()] == ["results-adopted"]
