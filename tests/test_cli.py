"""The console command, as a user types it."""

import json
import os
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from changed_traces import change
from conftest import ROOT, ran
from console import multicard
from factories import make_run, vision_runs, write_results, write_run
from machine.faked_programs import put
from multicard.config.load import read_experiment
from multicard.config.runs import expand_scenario
from multicard.core.reasons import Reason
from multicard.launch.attempts import scratch_in
from multicard.share.manifest import FILES
from synthetic import PID, kineto_trace, nsys_export


def refused(*arguments: str | Path) -> str:
    """The one line with which the command refuses its input."""
    stopped = multicard("analyze", *arguments)
    assert stopped.returncode == 1
    [line] = stopped.stderr.splitlines()
    return line


def config(folder: Path, cluster: dict[str, object] | None = None, **scenario: object) -> Path:
    path = folder / "mine.yaml"
    a = {"question": "?", "fixed": {"device": "cpu"}, "figures": ["step_breakdown"]} | scenario
    stated = {"results": str(folder / "results"), "scenarios": {"a": a}} | ({"cluster": cluster} if cluster else {})
    path.write_text(yaml.safe_dump(stated))
    return path


def words(text: str) -> str:
    """Text of a table, whose lines may be broken anywhere."""
    return " ".join(text.replace("│", " ").split())


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "multicard: error: the command is missing; multicard --help lists them"),
        (
            ["sclae"],
            "multicard: error: argument COMMAND: found 'sclae' (did you mean 'scale'?), expected one of scale, ",
        ),
        (
            ["doctor", "--device", "gpu"],
            "multicard doctor: error: argument --device: found 'gpu' (did you mean 'cuda'?), expected one of auto, cpu",
        ),
    ],
)
def test_a_mistyped_word_is_told_with_what_was_probably_meant(arguments: list[str], says: str) -> None:
    stopped = multicard(*arguments)
    [line] = stopped.stderr.splitlines()
    assert stopped.returncode == 1 and line.startswith(says)


@pytest.mark.parametrize("command", ["run", "status", "archive"])
def test_outside_of_a_project_what_to_do_is_named(tmp_path: Path, command: str) -> None:
    stopped = multicard(command, folder=tmp_path)
    [line] = stopped.stderr.splitlines()
    assert stopped.returncode == 1 and line.startswith("found no multicard.yaml or config/config.yaml in this folder, ")
    assert line.endswith("; multicard scale --devices 1,2 -- SCRIPT.py writes one")
    assert list(tmp_path.iterdir()) == []


def test_runs_lists_what_can_run_here_and_why_the_rest_cannot(tmp_path: Path) -> None:
    listed = multicard("run", "--dry-run", config(tmp_path, vary={"strategy": ["single", "ddp"], "devices": [1, 999]}))
    assert listed.returncode == 0
    assert "vision_digits_32px_single_cpu1_fp32_r1" in listed.stdout
    assert "the strategy single uses one device, not 999" in listed.stdout
    assert "needs 999 devices, " in listed.stdout
    assert "4 runs: 2 would run (" in listed.stdout
    # Those that can run come with their place in the order.
    rows = [[cell.strip() for cell in line.split("│")] for line in listed.stdout.splitlines() if "vision_" in line]
    assert sorted(order for _, _, order, _, here, *_ in rows if here == "would run") == ["1", "2"]
    assert {order for _, _, order, _, here, *_ in rows if here != "would run"} == {""}
    cluster = {"cpus_per_node": 16, "gpus_per_node": 4}
    listed = multicard("run", "--dry-run", config(tmp_path, cluster, fixed={"num_workers": 20}, repeats=2))
    assert "2 runs: none would run (" in listed.stdout
    assert "2 cannot: needs 21 CPUs of a node for its ranks and loader workers, 16 found" in listed.stdout


def test_a_dry_run_tells_what_is_done_and_what_failed_from_what_would_run(tmp_path: Path) -> None:
    path = config(tmp_path, vary={"seed": [0, 1, 2, 3]})

    def listed(*options: str) -> tuple[list[str], str]:
        out = multicard("run", "--dry-run", path, *options).stdout
        rows = [[cell.strip() for cell in line.split("│")] for line in out.splitlines() if "vision_" in line]
        return sorted(row[4] for row in rows), out

    assert listed()[1].splitlines()[-1].endswith("; each 60 min at most (time_limit_min)")
    runs = sorted(expand_scenario(read_experiment(path), "a"), key=lambda run: run.id)
    for run, outcome in zip(runs, ("completed", "failed"), strict=False):
        made = make_run(run.parameters, outcome=outcome, wall_time_s=90.0)
        write_run(tmp_path / "results/runs", made)
    states, out = listed()
    assert states == ["done", "failed before", "would run", "would run"]
    assert "4 runs: 2 would run, 1 done, 1 failed before (" in out
    assert "\n--retry-failed repeats runs that failed before\n" in out
    # Two runs as long as the one that is done.
    assert out.splitlines()[-1] == "about 3 min, as earlier runs took"
    again = listed("--retry-failed")[1]
    assert "4 runs: 3 would run, 1 done (" in again and again.splitlines()[-1].startswith("about 4 min 30 s")
    for run in runs:
        write_run(tmp_path / "results/runs", make_run(run.parameters))
    none = listed()[1]
    assert "4 runs: none would run, 4 done (" in none and "min" not in none.splitlines()[-1]


def test_a_matrix_for_gpus_is_listed_with_an_estimate_of_its_hours(tmp_path: Path) -> None:
    listed = multicard("run", "--dry-run", config(tmp_path, fixed={"image_size": 300}, vary={"precision": ["fp32"]}))
    assert listed.returncode == 0, listed.stderr
    assert "GPU hours of whole nodes" in listed.stdout


def test_runs_that_exceed_the_stated_memory_of_a_gpu_are_flagged(tmp_path: Path) -> None:
    stated = yaml.safe_load((ROOT / "config" / "paper-llm.yaml").read_text())
    stated["scenarios"] = {"techniques": stated["scenarios"]["techniques"]}

    def listed(memory_gb: int) -> str:
        stated["cluster"] = {"cpus_per_node": 64, "gpus_per_node": 4, "gpu_memory_gb": memory_gb}
        path = tmp_path / "stated.yaml"
        path.write_text(yaml.safe_dump(stated))
        found = multicard("run", "--dry-run", path)
        assert found.returncode == 0, found.stderr
        return " ".join(found.stdout.split())

    # Three repeats of QAT of all weights on one GPU: weights and gradients in bf16 with two moments are 64 GB alone.
    assert "3 runs unlikely to fit into the memory of a GPU" in listed(94)
    assert "unlikely to fit" not in listed(141)


RUN = "vision_digits_32px_single_cpu1_fp32_r1"


@pytest.mark.parametrize(
    ("state", "outcome"), [("RUNNING", "1 running"), ("PENDING", "1 queued"), ("COMPLETED", "1 waiting")]
)
def test_status_tells_queued_and_running_jobs_of_slurm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str, outcome: str
) -> None:
    listed = f"7|{state}|Resources|2026-01-01T00:00:00|{Path.cwd()}|rule_launch_run_wildcards_{RUN}"
    put(tmp_path, "squeue", f"echo '{listed}'")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    shown = multicard("status", config(tmp_path))
    assert (shown.returncode, shown.stdout.splitlines()[-1]) == (0, outcome)


@pytest.mark.parametrize(("profile", "says"), [(["--profile", "slurm"], True), ([], False)])
def test_status_says_that_slurm_does_not_answer_where_it_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, profile: list[str], says: bool
) -> None:
    controller = "a-controller-with-a-long-name." * 5
    put(tmp_path, "squeue", f"echo 'slurm_load_jobs error: Unable to contact {controller}' >&2; exit 1")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    shown = multicard("status", config(tmp_path), *profile)
    *above, last = shown.stdout.splitlines()
    assert (shown.returncode, last) == (0, "1 waiting")
    problem = f"squeue ended with 1, saying: slurm_load_jobs error: Unable to contact {controller}"
    consequence = "queued and running jobs may be shown as waiting"
    # In one line, however long, which is longer than the 220 columns of a table in a pipe.
    assert above == ([f"Slurm does not answer: {problem}; {consequence}"] if says else [])


def test_status_tells_a_run_that_another_process_is_running(tmp_path: Path) -> None:
    with scratch_in(tmp_path / "results/runs" / RUN):
        shown = multicard("status", config(tmp_path))
    assert (shown.returncode, shown.stdout.splitlines()[-1]) == (0, "1 running")


def write_record(folder: Path, **changes: Any) -> Path:
    """Write the record of the run of `config`."""
    [run] = expand_scenario(read_experiment(config(folder)), "a")
    return write_run(folder / "results/runs", make_run(run.parameters, **changes))


@pytest.mark.parametrize(
    ("changes", "code", "remark", "counts"),
    [
        (
            {"outcome": "failed", "reason": Reason("error", rank=0, message="[red]why")},
            1,
            "rank 0: [red]why",
            "1 failed",
        ),
        (
            {"conditions": [{"others_cpu_s": 90.0, "wall_s": 60.0}]},
            0,
            "disturbed: other processes: 1.5 CPUs",
            "1 completed",
        ),
        ({"profiler": {"used": "nsys", "caveat": "nsys 1.0.0 is older"}}, 0, "nsys 1.0.0 is older", "1 completed"),
    ],
)
def test_status_says_what_is_to_be_known_of_a_run(
    changes: dict[str, Any], code: int, remark: str, counts: str, tmp_path: Path
) -> None:
    write_record(tmp_path, **changes)
    shown = multicard("status", config(tmp_path))
    assert (shown.returncode, shown.stdout.splitlines()[-1]) == (code, counts)
    assert remark in words(shown.stdout)


def test_status_reads_measured_scenarios_from_their_tables(tmp_path: Path) -> None:
    run, table = write_record(tmp_path), tmp_path / "results/scenarios/a/measures.csv"
    (run / "activity").mkdir()
    for name in FILES[:-1]:
        (run / name).write_bytes(b"PAR1")  # so that this run cannot be measured
    (run / "activity/tables.json").write_text(json.dumps({"tables": {"phases": {"absent": None}}}))
    table.parent.mkdir(parents=True)
    table.write_text(f"run,outcome,workload,inconsistency\n{RUN},completed,vision,its steps last twice as long\n")
    shown = multicard("status", config(tmp_path))
    assert shown.returncode == 1
    assert "its steps last twice as long" in words(shown.stdout)
    os.utime(table, (0, 0))  # of before the run
    shown = multicard("status", config(tmp_path))
    assert (shown.returncode, shown.stdout) == (0, "1 completed\n")


def test_a_bad_configuration_is_one_line(tmp_path: Path) -> None:
    stopped = ran(Path(sys.prefix, "bin/multicard"), "run", config(tmp_path, repeats=0), "--dry-run")
    assert (stopped.returncode, stopped.stdout) == (1, "")
    [line] = stopped.stderr.splitlines()
    assert "mine.yaml: scenarios.a.repeats: found 0" in line


@pytest.mark.parametrize("make", [nsys_export, kineto_trace])
def test_a_trace_is_summed_up_and_its_tables_are_written(make: object, tmp_path: Path) -> None:
    path = make(tmp_path / ("t.sqlite" if make is nsys_export else "t.json"))
    shown = multicard("analyze", path, "--only", "kernels,timeline", "--out", tmp_path / "some")
    assert shown.returncode == 0, shown.stderr
    names = {file.name for file in (tmp_path / "some").iterdir()}
    assert names == {"kernels.csv", "kernels.parquet", "timeline.csv", "timeline.parquet", "timeline.png"}
    assert "gemm" in shown.stdout and "cudaLaunchKernel" not in shown.stdout
    written = pd.read_csv(tmp_path / "some" / "kernels.csv")
    assert written["total_s"].tolist() == pytest.approx([0.008])
    assert pd.read_parquet(tmp_path / "some" / "kernels.parquet")["calls"].tolist() == [2]
    shown = multicard("analyze", path)
    warning, answer, *_ = shown.stdout.splitlines()
    assert warning == "t: process 4242: 1 of 3 kernel launches have no kernel" and answer.startswith("1 GPU")
    assert all(word in shown.stdout for word in ("cudaLaunchKernel", "gemm", "host to device", "--verbose"))
    shown = multicard("analyze", path, "--verbose")
    assert all(word in shown.stdout for word in ("cudaLaunchKernel", "gemm", "host_to_device", "timeline"))


def test_two_traces_are_compared(tmp_path: Path) -> None:
    a, b = nsys_export(tmp_path / "a.sqlite"), kineto_trace(tmp_path / "b.json")
    shown = multicard("compare", a, b)
    assert shown.returncode == 0, shown.stderr
    assert "cudaLaunchKernel" in shown.stdout
    stopped = multicard("compare", a, tmp_path / "none.sqlite")
    assert (stopped.returncode, stopped.stderr.strip()) == (1, f"{tmp_path}/none.sqlite: no such file")


def test_a_folder_of_traces_is_one_trace_and_what_it_lacks_is_said(tmp_path: Path) -> None:
    nsys_export(tmp_path / "a.sqlite", cuda=False)
    shown = multicard("analyze", tmp_path / "a.sqlite", "--verbose")
    assert "kernels: cannot tell: the capture holds no kernels" in shown.stdout
    (tmp_path / "a.nsys-rep").write_text("already exported")
    kineto_trace(tmp_path / "rank1.json.gz")
    (tmp_path / "captured.json").write_text("{}")
    shown = multicard("analyze", tmp_path, "--json")
    assert shown.returncode == 0, shown.stderr
    tables = json.loads(shown.stdout)["tables"]
    assert len(tables["phases"]) == 8 + 7
    assert tables["kernels"][0]["process"] == PID


def test_files_of_the_ranks_of_one_job_are_one_trace(tmp_path: Path) -> None:
    # In folders of their own, so that the files have one name; as a shell expands a pattern, a file may occur twice.
    ranks = [tmp_path / f"rank{rank}" / "trace.json" for rank in (0, 1)]
    for number, path in enumerate(ranks):
        path.parent.mkdir()
        kineto_trace(path, rank=number)
    shown = multicard("analyze", *ranks, ranks[0], "--json")
    assert shown.returncode == 0, shown.stderr
    kernels = json.loads(shown.stdout)["tables"]["kernels"]
    assert [(row["report"], row["rank"], row["calls"]) for row in kernels] == [
        ("rank0/trace", 0, 2), ("rank1/trace", 1, 2),
    ]  # fmt: skip
    assert "\n2 GPUs" in multicard("analyze", *ranks).stdout
    assert refused(ranks[0], tmp_path / "none.json") == f"{tmp_path}/none.json: no such file"
    assert refused("--as-runs", *ranks) == "--as-runs: found 2 paths, expected one table of traces"


@pytest.mark.parametrize(
    ("name", "shown_as"),
    [
        ("'[red]gemm[/red] ' || char(27) || '[31m; DROP TABLE x --'", "[red]gemm[/red] �[31m; DROP TABLE x --"),
        ("CAST(x'67e46d6d' AS TEXT)", "g�mm"),  # no UTF-8
    ],
)
def test_text_in_a_trace_stays_text(name: str, shown_as: str, tmp_path: Path) -> None:
    path = change(nsys_export(tmp_path / "t.sqlite"), f"UPDATE StringIds SET value = {name} WHERE value = 'gemm'")
    shown = multicard("analyze", path)
    assert shown.returncode == 0, shown.stderr
    assert shown_as in shown.stdout and "\x1b" not in shown.stdout


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("t.sqlite", b"not a database " * 300, "not a readable SQLite database"),
        ("t.json", b'{"traceEvents": 3}', "t.json: no trace of PyTorch's profiler: "),
        ("none.sqlite", None, "no such file"),
        ("", None, ": no trace files, expected names like *.nsys-rep, *.qdrep, *.sqlite, *.json, *.json.gz"),
        ("t.nsys-rep", b"x", "t.nsys-rep"),  # cannot be exported, with nsys or without
    ],
)
def test_what_is_no_trace_is_one_line_and_leaves_no_file(
    name: str, content: bytes | None, says: str, tmp_path: Path
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    if content is not None:
        (folder / name).write_bytes(content)
    assert says in refused(folder / name, "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_database_of_another_schema_that_is_cut_or_locked_is_refused(tmp_path: Path) -> None:
    path = change(
        nsys_export(tmp_path / "t.sqlite"),
        "CREATE TABLE META_DATA_EXPORT (name TEXT, value TEXT)",
        "INSERT INTO META_DATA_EXPORT VALUES ('EXPORT_SCHEMA_VERSION', '3.99.1')",
    )
    assert multicard("analyze", path).returncode == 0, "newer versions of a known kind only add to it"
    change(path, "UPDATE META_DATA_EXPORT SET value = '4.0.0'")
    assert f"{path}: export schema 4.0.0 is not known, expected at most 3.x" in refused(path)
    path = nsys_export(tmp_path / "u.sqlite")
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("BEGIN EXCLUSIVE")
        assert refused(path) == f"{path}: locked, another program is writing to it"
    change(path, "ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL RENAME COLUMN demangledName TO kernelName")
    assert refused(path).endswith("CUPTI_ACTIVITY_KIND_KERNEL lacks the column demangledName: the schema is not known")
    path.write_bytes(path.read_bytes()[:-5000])
    assert str(path) in refused(path, "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_bad_arguments_are_named_before_anything_is_read(tmp_path: Path) -> None:
    path, none = nsys_export(tmp_path / "t.sqlite"), tmp_path / "none.sqlite"
    assert "no table kernel, expected some of phases, ranges" in refused(path, "--only", "kernel")
    assert f"--out: {path} is a file, expected a folder" in refused(none, "--out", path)
    assert f"--out: cannot write to {path}/below: {path} is not a folder" in refused(none, "--out", path / "below")
    assert "--out: cannot write to /proc/here: /proc: " in refused(none, "--out", "/proc/here")
    assert refused(none, "--perfetto", tmp_path) == (
        f"--perfetto: cannot write to {tmp_path}: {tmp_path} is a folder, expected a file"
    )
    assert "is not a folder" in refused(none, "--perfetto", path / "events.json")
    assert refused(none, "--perfetto", "/dev/null").endswith("/dev/null is a device or a pipe, expected a file")


def test_files_that_exist_are_replaced_only_if_that_is_stated(tmp_path: Path) -> None:
    trace, tables = nsys_export(tmp_path / "t.sqlite"), tmp_path / "tables"
    kernels, notes = tables / "kernels.csv", tables / "notes.csv"
    tables.mkdir()
    for file in (kernels, notes):
        file.write_text("mine")
    to_tables = ("--only", "kernels", "--out", tables)
    remedy = "exists, expected a new name; --overwrite replaces it"
    assert refused(trace, *to_tables) == f"--out: {kernels} {remedy}"
    assert refused(trace, "--out", tables) == f"--out: {kernels} {remedy}"
    before = trace.read_bytes()
    assert refused(trace, "--perfetto", trace) == f"--perfetto: {trace} {remedy}"
    assert trace.read_bytes() == before
    assert multicard("analyze", trace, "--only", "timeline", "--out", tables).returncode == 0
    assert (kernels.read_text(), notes.read_text()) == ("mine", "mine")
    assert multicard("analyze", trace, *to_tables, "--overwrite").returncode == 0
    assert kernels.read_text() != "mine" and notes.read_text() == "mine"
    events = tmp_path / "events.json"
    events.write_text("mine")
    assert multicard("analyze", trace, "--perfetto", events, "--overwrite").returncode == 0
    assert "traceEvents" in events.read_text()


@pytest.mark.parametrize("command", ["report", "recommend"])
def test_a_folder_without_measures_is_no_result(command: str, tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "none"):
        stopped = multicard(command, folder)
        assert (stopped.returncode, stopped.stdout, len(stopped.stderr.splitlines())) == (1, "", 1)
        assert stopped.stderr.startswith(f"{folder}: ")


def test_the_papers_claims_are_found_from_any_folder_and_their_verdicts_counted(tmp_path: Path) -> None:
    write_results(tmp_path / "there", vision_runs(100.0) + vision_runs(120.0, layout="nhwc"))
    judged = multicard("report", "there", "--claims", folder=tmp_path)
    assert judged.returncode == 0, judged.stderr
    assert "nhwc_gain: confirmed" in judged.stdout
    assert judged.stdout.splitlines()[-1] == "11 not measured here, 1 confirmed"


def test_standard_output_is_json_alone_whatever_else_is_written(tmp_path: Path) -> None:
    trace = nsys_export(tmp_path / "t.sqlite")
    options = ("--json", "--only", "kernels", "--out", tmp_path / "tables", "--perfetto", tmp_path / "events.json")
    done = multicard("analyze", trace, *options)
    assert "kernels" in json.loads(done.stdout)["tables"] and "events for ui.perfetto.dev" in done.stderr
