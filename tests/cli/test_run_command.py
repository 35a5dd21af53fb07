"""`multicard run`: how Snakemake is started, stopped and ended, and what the exit code says."""

import signal
import subprocess
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from conftest import ROOT, TINY
from factories import make_run, write_run
from machine.faked_programs import put
from multicard.cli import main
from multicard.cli._command import profile
from multicard.cli._pipeline import run_pipeline
from multicard.cli.run import run_and_print
from multicard.config.load import check
from multicard.config.plan import Plan
from multicard.config.runs import distinct, expand

PYTHON = sys.executable  # a fixture replaces it


@pytest.fixture
def snakemake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program in the place of Python with Snakemake: it leaves its arguments, and does what `then` says."""
    put(tmp_path, "python", f'printf "%s\\n" "$@" > {tmp_path}/arguments\necho said\n. {tmp_path}/then')
    (tmp_path / "then").write_text("exit 0\n")
    monkeypatch.setattr("multicard.cli._pipeline.sys.executable", str(tmp_path / "python"))
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
    assert plain[plain.index("--snakefile") + 1] == str(ROOT / "workflow/Snakefile")
    # Snakemake would begin with a line about a profile, so it gets what the profile states.
    assert plain[plain.index("--profile") + 1] == "none"
    stated = yaml.safe_load((ROOT / "profiles/local/config.yaml").read_text())
    assert {f"--{name}" if value is True else f"--{name}={value}" for name, value in stated.items()} <= set(plain)
    assert plain[-4:] == ["--logger", "multicard", "--logger-multicard-console", "results"]
    assert given(targets=["results/measured"])[-2:] == ["errors", "results/measured"]
    assert given(targets=["results/measured"], console="runs")[-2:] == ["runs", "results/measured"]
    of_command = ["--logger-multicard-began=12.5", "--logger-multicard-earlier-runs=3"]
    assert given(began=12.5, earlier_runs=3)[-2:] == of_command
    other = given(profile=Path("profiles/slurm"), options=["--dry-run", "results/report.html"])
    assert other[other.index("--profile") + 1] == "profiles/slurm"
    assert other[-3:] == ["full", "--dry-run", "results/report.html"]
    assert capfd.readouterr().out == "said\n" * 5


def test_a_profile_that_was_edited_to_state_more_than_options_is_used_as_it_is(
    snakemake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    edited = snakemake / "profiles/local"
    edited.mkdir(parents=True)
    (edited / "config.yaml").write_text("cores: all\nset-threads: {launch_run: 1}\n")
    monkeypatch.setattr("multicard.cli._pipeline.pipeline_folder", lambda: snakemake)
    assert run_pipeline(Path("mine.yaml"))
    arguments = (snakemake / "arguments").read_text().splitlines()
    assert arguments[arguments.index("--profile") + 1] == str(edited)


def test_no_name_of_a_run_is_cut_in_a_narrow_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("multicard.cli._console.WIDE", 80)
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text(yaml.safe_dump(EXPERIMENT))
    main(["run", "mine.yaml", "--dry-run"])
    rows = [line.split("│") for line in capsys.readouterr().out.splitlines() if line.startswith("│")]
    names = "".join(row[3].strip() for row in rows)
    assert names == "".join(Plan.make(check(EXPERIMENT, "mine.yaml")).order)


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
    for run, outcome in zip(distinct(expand(experiment)).values(), outcomes, strict=False):
        write_run(Path("results/runs"), make_run(run.parameters, outcome={"c": "completed", "f": "failed"}[outcome]))
    found = None
    try:
        run_and_print(Plan.make(experiment), tmp_path / "mine.yaml")
    except SystemExit as stopped:
        found = stopped.code
    assert found == code
    with suppress(SystemExit):
        run_and_print(Plan.make(experiment), tmp_path / "mine.yaml", retry_failed=True)
    assert len(list(Path("results/runs").glob("*/run.json"))) == outcomes.count("c")


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


def test_a_profile_is_found_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "settings"))
    assert profile("slurm") == ROOT / "profiles/slurm"
    (tmp_path / "settings/snakemake/slurm").mkdir(parents=True)
    assert profile("slurm") == tmp_path / "settings/snakemake/slurm"
    (tmp_path / "slurm").mkdir()
    assert profile("slurm") == Path("slurm")
    assert profile("nowhere") == Path("nowhere")
