"""`multicard run`: how Snakemake is started, stopped and ended, and what the exit code says."""

import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from conftest import ROOT, TINY
from multicard.archive.matrix import Matrix
from multicard.cli import main
from multicard.cli._pipeline import run_pipeline
from multicard.cli.run import forget_failed, run_and_print, why_stop
from multicard.core.errors import UserError
from multicard.core.files import write_json
from multicard.experiment.load import check
from multicard.experiment.runs import distinct, expand

PYTHON = sys.executable  # a fixture replaces it


@pytest.fixture
def snakemake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program in the place of Python with Snakemake: it leaves its arguments, and does what `then` says."""
    program = tmp_path / "python"
    program.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {tmp_path}/arguments\necho said\n. {tmp_path}/then\n')
    program.chmod(0o755)
    (tmp_path / "then").write_text("exit 0\n")
    monkeypatch.setattr("multicard.cli._pipeline.sys.executable", str(program))
    return tmp_path


def test_snakemake_prints_the_results_or_errors_alone_or_with_options_all(
    snakemake: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def given(**others: Any) -> list[str]:
        assert run_pipeline(Path("mine.yaml"), **others)
        return (snakemake / "arguments").read_text().splitlines()

    plain = given()
    assert plain[:3] == ["-P", "-m", "snakemake"]
    assert plain[plain.index("--configfile") + 1] == "mine.yaml"
    assert plain[plain.index("--snakefile") + 1] == str(ROOT / "Snakefile")
    assert plain[plain.index("--profile") + 1] == str(ROOT / "profiles" / "local")
    assert plain[-4:] == ["--logger", "multicard", "--logger-multicard-console", "results"]
    assert given(targets=["results/measured"])[-2:] == ["errors", "results/measured"]
    other = given(profile=Path("profiles/slurm"), options=["--dry-run", "results/report.html"])
    assert other[other.index("--profile") + 1] == "profiles/slurm"
    assert other[-3:] == ["full", "--dry-run", "results/report.html"]
    assert capfd.readouterr().out == "said\n" * 3


def test_where_it_fails_or_is_stopped_that_is_said(snakemake: Path) -> None:
    (snakemake / "then").write_text("exit 1\n")
    assert not run_pipeline(Path("mine.yaml"))
    (snakemake / "then").write_text("trap 'exit 1' TERM\nfor turn in $(seq 600); do sleep 0.1; done\nexit 0\n")
    asked = iter([None, "enough"])
    with pytest.raises(UserError, match=r"^enough$"):
        run_pipeline(Path("mine.yaml"), why_stop=lambda: next(asked))


def failed(folder: Path, run: str, message: str, outcome: str = "failed", **others: Any) -> str:
    """Leave the record of a run that did not complete."""
    reason = {"code": "error", "rank": 0, "message": message}
    write_json(folder / run / "run.json", {"outcome": outcome, "reason": reason} | others)
    return run


def test_first_runs_that_fail_alike_stop_the_others(tmp_path: Path) -> None:
    def said(*ends: tuple[str, str]) -> list[str | None]:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        planned = [f"r{at}" for at in range(12)]
        found = [why_stop(folder, planned)]
        for at, end in enumerate(ends):
            failed(folder, f"r{at}", *end)
            found.append(why_stop(folder, planned))
        return found

    alike = ("no file at 0x7f", "failed")
    *none, line = said(alike, ("no file at 0x81", "failed"), alike)
    assert none == [None] * 3
    assert "the first 3 of 12 runs failed alike: rank 0: no file at 0x7f" in line and "--keep-going" in line
    assert said(alike, alike, ("another error", "failed"), alike) == [None] * 5
    assert said(alike, alike, ("", "completed"), alike) == [None] * 5
    assert said(*[("no memory", "out_of_memory")] * 4) == [None] * 5, "others may need less"


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
        forget_failed(Matrix.plan(experiment), every)
        return sorted(record.parent.name for record in runs.glob("*/run.json"))

    assert left(every=False) == [fails, completes]
    assert left(every=True) == [completes]
    script.write_bytes(b"abcd")
    assert left(every=False) == [completes]


@pytest.mark.parametrize(
    ("outcomes", "made", "code"),
    [("cc", True, None), ("cf", True, 3), ("c", True, 3), ("ff", True, 1), ("", True, 1), ("cc", False, 1)],
)
def test_the_exit_code_tells_whether_runs_failed(
    outcomes: str, made: bool, code: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("multicard.cli._pipeline.run_pipeline", lambda *_, **__: made)
    scenarios = {"formats": EXPERIMENT["scenarios"]["formats"] | {"repeats": 2}}
    experiment = check(EXPERIMENT | {"scenarios": scenarios, "results": "results"}, "mine.yaml", outside=False)
    monkeypatch.chdir(tmp_path)
    for run, outcome in zip(distinct(expand(experiment)), outcomes, strict=False):
        failed(Path("results/runs"), run, "", {"c": "completed", "f": "failed"}[outcome])
    found = None
    try:
        run_and_print(Matrix.plan(experiment), tmp_path / "mine.yaml")
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
    monkeypatch.setattr("multicard.cli._pipeline.run_pipeline", lambda *stated: given.append(stated) or True)
    with pytest.raises(SystemExit, match=r"none\.yaml: cannot be read"):
        main(["run", str(tmp_path / "none.yaml")])
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(EXPERIMENT))
    with pytest.raises(SystemExit) as ended:
        main(["run", str(tmp_path / "mine.yaml"), "--", "--jobs", "1", "--", "x"])
    assert ended.value.code == 0
    assert given == [(tmp_path / "mine.yaml", None, ["--jobs", "1", "--", "x"])]


EXPERIMENT = {
    "fixed": TINY,
    "scenarios": {
        "formats": {"question": "Which format?", "vary": {"precision": ["fp32"]}, "figures": ["step_breakdown"]}
    },
}
