"""An sbatch that waits while Slurm takes no job. Slurm's tools are fakes here; tests/slurm has a real one."""

import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from machine.faked_programs import put
from multicard.core.system import start_of
from multicard.workflow.submission import (
    FOLDER,
    PIPELINE,
    PROGRAM,
    WAITING,
    Patience,
    Refusal,
    stop_submitting,
    submit,
    submit_patiently,
    waiting_submissions,
)

QUICK = Patience(first_wait_s=0.01, look_s=0.001)
OPTIONS = ["--parsable", "--job-name", "uuid", "/dev/stdin"]
TIMED_OUT = "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation"
LIMITED = "sbatch: error: AssocMaxSubmitJobLimit\nsbatch: error: Batch job submission failed: Job violates …"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a pipeline, this process, that submits patiently; with fakes of Slurm's tools in `bin`."""
    (tmp_path / "bin").mkdir()
    for name in ("PATH", FOLDER, PIPELINE):  # to have them as before at last
        monkeypatch.setenv(name, os.environ.get(name, ""))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    put(tmp_path / "bin", "squeue", "exit 0")
    submit_patiently(tmp_path)
    return tmp_path


def fails(folder: Path, times: int, error: str, *then: str) -> None:
    """Have sbatch note its script, and fail so many times before it submits the job 7."""
    put(
        folder / "bin",
        "sbatch",
        f"cat >> {folder}/scripts; echo tried >> {folder}/tries\n"
        f"[ $(wc -l < {folder}/tries) -gt {times} ] && echo 7 && exit\n"
        f"printf '{error}\\n' >&2; " + "; ".join(then) + "\nexit 1",
    )


def tries(folder: Path) -> int:
    return len((folder / "tries").read_text().split())


@pytest.mark.parametrize("error", [TIMED_OUT, LIMITED, "sbatch: error: Unable to contact slurm controller (…)"])
def test_what_is_refused_for_the_moment_is_submitted_again_and_only_the_last_answer_counts(
    folder: Path, error: str
) -> None:
    fails(folder, 3, error)
    assert submit(OPTIONS, "#!/bin/sh\ntrue", os.environ, QUICK) == (0, "7\n", "")
    assert tries(folder) == 4
    assert waiting_submissions(folder) == []


def test_what_is_refused_for_good_is_not_tried_again(folder: Path) -> None:
    error = "sbatch: error: Batch job submission failed: Invalid account or account/partition combination specified"
    fails(folder, 1, error)
    assert submit(OPTIONS, "", os.environ, QUICK) == (1, "", f"{error}\n")
    assert tries(folder) == 1


def test_a_controller_that_stays_away_is_asked_for_an_hour_and_a_limit_as_long_as_it_takes(folder: Path) -> None:
    impatient = replace(QUICK, no_answer_s=0.0)
    fails(folder, 2, TIMED_OUT)
    assert submit(OPTIONS, "", os.environ, impatient).error == f"{TIMED_OUT}\n"
    (folder / "tries").unlink()
    fails(folder, 2, LIMITED)
    assert submit(OPTIONS, "", os.environ, impatient) == (0, "7\n", "")


def test_a_job_that_slurm_took_without_an_answer_is_not_submitted_twice(folder: Path) -> None:
    """The controller takes the first try, and another job of the same name; its answer does not come."""
    fails(folder, 1, TIMED_OUT, f"cp {folder}/scripts {folder}/taken")
    put(folder / "bin", "squeue", '[ "$3" = --name=uuid ] && echo 41 && echo 42')
    put(folder / "bin", "scontrol", f'[ "$1 $2 $3 $4" = "write batch_script 42 -" ] && cat {folder}/taken')
    assert submit(OPTIONS, "true", os.environ, QUICK) == (0, "42\n", "")
    assert tries(folder) == 1


def test_while_it_is_not_known_whether_slurm_took_a_job_none_is_submitted(folder: Path) -> None:
    fails(folder, 1, TIMED_OUT)
    # The queue is told at the third time.
    put(
        folder / "bin",
        "squeue",
        f"cp {folder}/tries {folder}/before; echo >> {folder}/asked; [ $(wc -l < {folder}/asked) -ge 3 ]",
    )
    assert submit(OPTIONS, "true", os.environ, QUICK) == (0, "7\n", "")
    assert len((folder / "asked").read_text()) == 3
    assert (folder / "before").read_text() == "tried\n"


def test_a_submission_that_waits_says_why_and_ends_with_the_pipeline(folder: Path) -> None:
    fails(folder, 10**6, LIMITED)
    with subprocess.Popen(
        ["sbatch", *OPTIONS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as waits:
        waits.stdin.close()
        while not waiting_submissions(folder):
            time.sleep(0.01)
        assert waiting_submissions(folder) == [Refusal("AssocMaxSubmitJobLimit", is_limit=True)]
        stop_submitting(folder)
        assert waits.wait(timeout=60) == 1
        assert waits.stderr.read() == "the pipeline is told to end"
    # Nothing is submitted from then on, however much Snakemake still has to.
    before = tries(folder)
    assert submit(OPTIONS, "", os.environ, QUICK).exit_code == 1
    assert tries(folder) == before


def test_a_submission_of_a_pipeline_that_was_killed_ends(folder: Path) -> None:
    with subprocess.Popen(["sleep", "600"]) as pipeline:
        killed = os.environ | {PIPELINE: f"{pipeline.pid} {start_of(pipeline.pid)}"}
        pipeline.kill()
    fails(folder, 0, LIMITED)
    assert submit(OPTIONS, "", killed, QUICK).exit_code == 1
    assert not (folder / "tries").exists()


def test_a_job_does_not_get_what_only_the_submission_needs(folder: Path) -> None:
    put(folder / "bin", "sbatch", f"env > {folder}/env; echo 7")
    assert subprocess.run(["sbatch", *OPTIONS], input="", text=True, capture_output=True, check=True).stdout == "7\n"
    variables = dict(line.split("=", 1) for line in (folder / "env").read_text().splitlines() if "=" in line)
    assert not {FOLDER, PIPELINE} & variables.keys()
    assert str(folder / PROGRAM.parent) not in variables["PATH"].split(os.pathsep)
    assert variables["PATH"].split(os.pathsep)[0] == str(folder / "bin")
    assert sys.executable in (folder / PROGRAM).read_text()
    assert (folder / WAITING).is_dir()


STATES = ["sacct", "-X", "--parsable2", "--noheader", "--format=JobIdRaw,State", "--endtime", "now", "--name", "uuid"]


def test_where_there_is_no_accounting_sacct_has_the_states_of_squeue(folder: Path) -> None:
    put(folder / "bin", "squeue", '[ "$4" = --name=uuid ] && echo "7|RUNNING"')
    put(folder / "bin", "sacct", "echo Slurm accounting storage is disabled >&2; exit 1")
    done = subprocess.run(STATES, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "7|RUNNING\n")
    other = subprocess.run(["sacct", "-j", "7"], capture_output=True, text=True, check=False)
    assert (other.returncode, other.stdout) == (1, "")
    put(folder / "bin", "sacct", 'echo "7|COMPLETED"')
    assert subprocess.run(STATES, capture_output=True, text=True, check=True).stdout == "7|COMPLETED\n"
