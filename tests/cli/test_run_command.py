"""`multicard run`: how Snakemake is started, what is told of it, and what it is told."""

import os
import signal
import subprocess
import sys
import time
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from conftest import ROOT, TINY
from multicard.cli import main
from multicard.cli._pipeline import run_pipeline
from multicard.cli.run import FirstRuns, forget_failed, run_and_print
from multicard.core.errors import UserError
from multicard.core.files import write_json
from multicard.experiment.load import check
from multicard.experiment.runs import distinct, expand
from multicard.launch.signals import ON_SLURM
from multicard.launch.slurm_watch import QueueWatch

PYTHON = sys.executable  # a fixture replaces it
LINES = """host: node7
launch_run         1
Job 3: prepare the data set digits
1 of 4 steps (25%) done
Job 2: run a_r1
multicard: a_r1: starting, profiler none
multicard:   step 7 of 60
multicard: a_r1: completed, 12.3 ms per step (8 s)
Finished jobid: 2 (Rule: launch_run)
2 of 4 steps (50%) done
Job 0: write the report
"""


@pytest.fixture
def snakemake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program in the place of Python with Snakemake: it leaves its arguments, and does what `then` says."""
    program = tmp_path / "python"
    program.write_text(
        f'#!/bin/sh\nprintf "%s\\n" "$@" > {tmp_path}/arguments\ncat {tmp_path}/lines\n. {tmp_path}/then\n'
    )
    program.chmod(0o755)
    (tmp_path / "lines").write_text(LINES)
    (tmp_path / "then").write_text("exit 0\n")
    monkeypatch.setattr("multicard.cli._pipeline.sys.executable", str(program))
    return tmp_path


def test_a_line_is_told_of_each_step(snakemake: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run_pipeline(Path("mine.yaml"))
    assert capfd.readouterr().out.splitlines() == [
        "[0/1 runs] prepare the data set digits",
        "[0/1 runs] a_r1: starting, profiler none",
        "[0/1 runs]   step 7 of 60",
        "[1/1 runs] a_r1: completed, 12.3 ms per step (8 s)",
        "[1/1 runs] write the report",
    ]
    given = (snakemake / "arguments").read_text().splitlines()
    assert given[:3] == ["-P", "-m", "snakemake"]
    assert given[given.index("--configfile") + 1] == "mine.yaml"
    assert given[given.index("--snakefile") + 1] == str(ROOT / "Snakefile")
    assert given[given.index("--profile") + 1] == str(ROOT / "profiles" / "local")


def test_on_a_cluster_runs_are_steps_too_and_why_a_job_waits_is_told_once(
    snakemake: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    squeue = snakemake / "bin" / "squeue"
    squeue.parent.mkdir()
    squeue.write_text(f"#!/bin/sh\necho '7|PENDING|AssocMaxJobsLimit|2026-01-01T00:00:00|{snakemake}|rule_a'\n")
    squeue.chmod(0o755)
    monkeypatch.setenv("PATH", str(squeue.parent), prepend=os.pathsep)
    said: list[str] = []
    watch = QueueWatch(snakemake, datetime(2025, 1, 1), said.append)
    watch.look()
    watch.look()
    steps = [line for line in LINES.splitlines() if not line.startswith("multicard: ")]
    (snakemake / "lines").write_text("".join(f"{line}\n" for line in (*said, *steps, ON_SLURM)))
    for targets in ((), ["results/measured"]):
        assert run_pipeline(Path("mine.yaml"), Path("profiles/slurm"), targets=targets)
    waits = "Slurm job 7 (rule_a) is waiting: AssocMaxJobsLimit"
    told = ["[0/1 runs] prepare the data set digits", "[0/1 runs] run a_r1", "[1/1 runs] write the report"]
    assert capfd.readouterr().out.splitlines() == [waits, *told, ON_SLURM, waits, ON_SLURM]
    assert "profiles/slurm" in (snakemake / "arguments").read_text().splitlines()


def test_with_options_all_is_snakemake_s(snakemake: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run_pipeline(Path("mine.yaml"), options=["--dry-run", "results/report.html"])
    assert capfd.readouterr().out == LINES
    given = (snakemake / "arguments").read_text().splitlines()
    assert given[-2:] == ["--dry-run", "results/report.html"]


def test_where_it_fails_or_is_stopped_that_is_said(snakemake: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (snakemake / "then").write_text("echo 'LockException: Directory cannot be locked.' >&2; exit 1\n")
    assert not run_pipeline(Path("mine.yaml"))
    assert capfd.readouterr().err.splitlines()[-1] == "LockException: Directory cannot be locked."
    (snakemake / "then").write_text("trap 'exit 1' TERM\nfor turn in $(seq 600); do sleep 0.1; done\nexit 0\n")
    asked = []
    with pytest.raises(UserError, match=r"^enough$"):
        run_pipeline(Path("mine.yaml"), why_stop=lambda run: asked.append(run) or "enough")
    assert asked == ["a_r1"]


def failed(folder: Path, run: str, message: str, outcome: str = "failed", **others: Any) -> str:
    """Leave the record of a run that did not complete."""
    reason = {"code": "error", "rank": 0, "message": message}
    write_json(folder / run / "run.json", {"outcome": outcome, "reason": reason} | others)
    return run


def test_first_runs_that_fail_alike_stop_the_others(tmp_path: Path) -> None:
    def stops(*ends: tuple[str, str]) -> list[bool]:
        watch = FirstRuns(tmp_path, 12)
        return [bool(watch.why_stop(failed(tmp_path, f"r{at}", *end))) for at, end in enumerate(ends)]

    alike = ("no file at 0x7f", "failed")
    assert stops(alike, ("no file at 0x81", "failed"), alike, alike) == [False, False, True, False]
    assert stops(alike, alike, ("another error", "failed")) == [False] * 3
    assert stops(alike, alike, ("", "completed"), alike) == [False] * 4
    assert stops(*[("no memory", "out_of_memory")] * 4) == [False] * 4, "others may need less"
    said = FirstRuns(tmp_path, 12)
    [line] = [line for _ in range(3) if (line := said.why_stop(failed(tmp_path, "r0", "no data here")))]
    assert "the first 3 of 12 runs failed alike: rank 0: no data here" in line and "--keep-going" in line


def test_failed_runs_are_run_again_where_their_script_has_changed_or_all_are_asked_for(tmp_path: Path) -> None:
    script, runs = tmp_path / "train.py", tmp_path / "results" / "runs"
    script.write_bytes(b"abc")
    sha256 = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"  # of "abc", by FIPS 180-4
    fixed = {"workload": "script", "command": [str(script)], "device": "cpu"}
    scenario = {"question": "?", "fixed": fixed, "vary": {"steps": [5, 6]}, "figures": ["memory"]}
    experiment = check({"results": str(runs.parent), "scenarios": {"s": scenario}}, "mine.yaml", outside=False)
    fails, completes = sorted(distinct(expand(experiment)))

    def left(every: bool) -> list[str]:
        known = {"script": {"file": "train.py", "sha256": sha256}}
        failed(runs, fails, "no data here", **known)
        failed(runs, completes, "", "completed", **known)
        forget_failed(experiment, every)
        return sorted(record.parent.name for record in runs.glob("*/run.json"))

    assert left(every=False) == [fails, completes]
    assert left(every=True) == [completes]
    script.write_bytes(b"abcd")
    assert left(every=False) == [completes]


@pytest.mark.parametrize(
    ("results", "made", "code"),
    [((True, False), True, None), ((True, True), True, 3), ((False, True), True, 1), ((True, False), False, 1)],
)
def test_the_exit_code_tells_whether_runs_failed(
    results: tuple[bool, bool], made: bool, code: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("multicard.cli._overview.print_results", lambda *_: results)
    monkeypatch.setattr("multicard.cli._pipeline.run_pipeline", lambda *_, **__: made)
    found = None
    try:
        run_and_print(check(EXPERIMENT, "mine.yaml", outside=False), tmp_path / "mine.yaml")
    except SystemExit as stopped:
        found = stopped.code
    assert found == code


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_whoever_ends_multicard_ends_snakemake(number: signal.Signals, snakemake: Path) -> None:
    (snakemake / "then").write_text(
        f"trap 'touch {snakemake}/ended; exit 1' TERM\ntouch {snakemake}/ready\n"
        "for turn in $(seq 3000); do sleep 0.1; done\n"
    )
    program = (
        "import sys; from pathlib import Path; from multicard.core.errors import reported; "
        "from multicard.cli import _pipeline; _pipeline.sys.executable = sys.argv[1]\n"
        "with reported(): _pipeline.run_pipeline(Path('mine.yaml'))"
    )
    # Whoever runs the tests may ignore the signal, as nohup does, and so would the program.
    default = partial(signal.signal, number, signal.SIG_DFL)
    command = [PYTHON, "-c", program, str(snakemake / "python")]
    started = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, preexec_fn=default
    )
    try:
        while not (snakemake / "ready").exists():
            assert started.poll() is None
            time.sleep(0.05)
        started.send_signal(number)
        said = started.communicate(timeout=60)[1]
    finally:
        started.kill()
    assert started.returncode == 130
    assert said.splitlines() == ["interrupted; the same command continues where it stopped"]
    assert (snakemake / "ended").exists()


def test_what_stands_after_two_dashes_is_the_command_s_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    given = []
    monkeypatch.setattr("multicard.cli.run.run_and_print", lambda *stated: given.append(stated))
    with pytest.raises(SystemExit, match=r"none\.yaml: cannot be read"):
        main(["run", str(tmp_path / "none.yaml")])
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(EXPERIMENT))
    main(["run", str(tmp_path / "mine.yaml"), "--", "--jobs", "1", "--", "x"])
    [(experiment, *others)] = given
    assert others == [tmp_path / "mine.yaml", None, ["--jobs", "1", "--", "x"], False, False]
    assert list(experiment.scenarios) == ["formats"]


EXPERIMENT = {
    "fixed": TINY,
    "scenarios": {
        "formats": {"question": "Which format?", "vary": {"precision": ["fp32"]}, "figures": ["step_breakdown"]}
    },
}
