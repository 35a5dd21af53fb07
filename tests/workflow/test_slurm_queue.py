"""Jobs that will not start are named, preempted ones are requeued. Slurm's tools are fakes."""

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from machine.faked_programs import put
from multicard.core.errors import UserError
from multicard.workflow.one_pipeline import Pipeline
from multicard.workflow.slurm_queue import Queue, QueueWatch, refuse_orphans
from multicard.workflow.submission import WAITING

SINCE = datetime(2026, 1, 1, 12)
AFTER, BEFORE = "2026-01-01T12:00:00", "2026-01-01T11:59:59"


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of fakes: a squeue that prints the file `queue`, and a scontrol that notes what it is asked for."""
    for name, script in (("squeue", f"cat {tmp_path}/queue"), ("scontrol", f'echo "$@" >> {tmp_path}/asked')):
        put(tmp_path, name, script)
    put(tmp_path, "scancel", f'echo cancel "$@" >> {tmp_path}/asked')
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    return tmp_path


def said(tools: Path, *jobs: str, times: int = 1) -> list[str]:
    (tools / "queue").write_text("".join(f"{job}\n" for job in jobs))
    messages: list[str] = []
    watch = QueueWatch(Path("/my project"), SINCE, messages.append, lambda _: None)
    for _ in range(times):
        watch.look()
    return messages


def job(
    state: str, reason: str = "None", submitted: str = AFTER, folder: str = "/my project", of: str = "rule_a"
) -> str:
    return f"7|{state}|{reason}|{submitted}|{folder}|{of}"


@pytest.mark.parametrize(
    ("reason", "says"),
    [
        ("PartitionTimeLimit", "will not start: PartitionTimeLimit; ask for less"),
        ("AssocMaxWallDurationPerJobLimit", "will not start: AssocMaxWallDurationPerJobLimit; ask for less"),
        ("InvalidAccount", "will not start: InvalidAccount; state another slurm_account"),
        ("JobHeldUser", "will not start: JobHeldUser; release it with `scontrol release`"),
        # One that waits its turn, or for a node, is not named: `multicard status` has the reason.
        ("ReqNodeNotAvail, UnavailableNodes:n1", None),
        ("Priority", None),
        ("Resources", None),
        ("Dependency", None),
        ("None", None),
        ("AssocGrpCpuLimit", None),
    ],
)
def test_a_job_that_will_not_start_is_named_once_with_the_reason(tools: Path, reason: str, says: str | None) -> None:
    lines = said(tools, job("PENDING", reason), times=3)
    assert len(lines) == (says is not None)
    assert all(line.startswith(f"Slurm job 7 (rule_a) {says}") for line in lines)


def test_jobs_of_others_are_not_looked_at(tools: Path) -> None:
    other = {"folder": "/elsewhere"}, {"of": "my own job"}, {"submitted": BEFORE}
    for changes in other:
        assert said(tools, job("PENDING", "BadConstraints", **changes), job("PREEMPTED", **changes)) == []
    assert not (tools / "asked").exists()


def test_a_preempted_job_is_requeued_or_named_once_with_the_remedy(tools: Path) -> None:
    assert said(tools, job("PREEMPTED")) == ["Slurm job 7 (rule_a) was preempted and is requeued"]
    assert (tools / "asked").read_text() == "requeue 7\n"
    put(tools, "scontrol", "echo Requested operation is presently disabled >&2; exit 1")
    [line] = said(tools, job("PREEMPTED"), times=3)
    assert "cannot be requeued: scontrol ended with 1, saying: Requested operation is presently disabled" in line
    assert line.endswith("press Ctrl-C and start again")


def test_what_is_cancelled_while_the_pipeline_ends_is_not_requeued(tools: Path) -> None:
    watch = QueueWatch(Path("/my project"), SINCE, pytest.fail, lambda _: None)
    watch.ending.set()
    (tools / "queue").write_text(job("PREEMPTED") + "\n")
    watch.look()
    assert not (tools / "asked").exists()


@pytest.mark.parametrize("is_ending", [False, True])
def test_what_snakemake_leaves_in_the_queue_is_cancelled_only_where_it_was_told_to_end(
    tools: Path, is_ending: bool
) -> None:
    states = {3: "PENDING", 4: "RUNNING", 5: "CANCELLED", 6: "COMPLETED"}
    others = [job("PENDING", folder="/elsewhere"), job("RUNNING", submitted=BEFORE)]
    rows = [job(state).replace("7|", f"{number}|", 1) for number, state in states.items()]
    (tools / "queue").write_text("\n".join([*rows, *others]))
    watch = QueueWatch(Path("/my project"), SINCE, print, print)
    if is_ending:
        watch.ending.set()
    watch.cancel_left()
    assert (tools / "asked").exists() == is_ending
    assert not is_ending or (tools / "asked").read_text() == "cancel 3 4\n"


def test_jobs_are_cancelled_when_slurm_answers_again_and_told_when_it_never_does(
    tools: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tools / "queue").write_text(job("PENDING"))
    away = "echo Unable to contact slurm controller >&2; exit 1"
    put(tools, "squeue", f"echo >> {tools}/looks; [ $(wc -l < {tools}/looks) -gt 2 ] && exec cat {tools}/queue; {away}")
    watch = QueueWatch(Path("/my project"), SINCE, print, print)
    watch.ending.set()
    watch.cancel_left(limit_s=60, pause_s=0)
    assert (tools / "asked").read_text() == "cancel 7\n"
    [line] = capsys.readouterr().err.splitlines()
    assert "Slurm does not answer (squeue ended with 1, saying: Unable to contact slurm controller)" in line

    put(tools, "scancel", away)
    watch.cancel_left(limit_s=0)
    [line] = capsys.readouterr().err.splitlines()
    assert "may not be cancelled: scancel ended with 1, saying: Unable to contact" in line


def test_slurm_is_asked_in_its_own_form_and_again_where_it_does_not_answer(
    tools: Path, monkeypatch: pytest.MonkeyPatch, popen_options: dict[str, Any]
) -> None:
    monkeypatch.setenv("SLURM_TIME_FORMAT", "%s")
    put(tools, "squeue", f'[ "$SLURM_TIME_FORMAT" = standard ] && cat {tools}/queue')
    assert len(said(tools, job("PENDING", "PartitionTimeLimit"))) == 1
    assert popen_options.get("preexec_fn") is None  # from a thread there is no Python between fork and exec
    put(tools, "squeue", "echo Unable to contact slurm controller >&2; exit 1")
    assert said(tools, times=2) == []


def test_jobs_of_an_earlier_start_are_refused_by_name(tools: Path) -> None:
    of_run = "rule_launch_run_wildcards_vision_r1"
    (tools / "queue").write_text(
        f"{job('RUNNING', submitted=BEFORE, of=of_run)}\n{job('COMPLETED', submitted=BEFORE)}\n"
        f"{job('RUNNING', folder='/elsewhere')}\n"
    )
    with pytest.raises(UserError, match=r"^1 Slurm job .*: 7 \(vision_r1\); .* scancel 7$"):
        refuse_orphans(Path("/my project"), None)
    (tools / "queue").write_text(job("CANCELLED") + "\n")
    refuse_orphans(Path("/my project"), None)


def test_jobs_that_may_be_those_of_a_running_pipeline_are_not_to_be_cancelled(tools: Path) -> None:
    elsewhere = Pipeline("login2", 4711, "8", "2026-01-01 11:00")
    (tools / "queue").write_text(job("RUNNING", submitted=BEFORE, of="rule_launch_run_wildcards_vision_r1") + "\n")
    with pytest.raises(UserError) as refused:
        refuse_orphans(Path("/my project"), elsewhere)
    [line] = str(refused.value).splitlines()
    assert "or of a pipeline that is running on login2 (process 4711 on login2, since 2026-01-01 11:00)" in line
    assert "7 (vision_r1)" in line
    assert "scancel" not in line
    (tools / "queue").write_text("")
    refuse_orphans(Path("/my project"), elsewhere)


def test_what_each_look_finds_is_shown_and_that_slurm_does_not_answer(tools: Path) -> None:
    (tools / "queue").write_text(f"{job('PENDING')}\n{job('RUNNING', submitted=BEFORE)}\n")
    shown: list[Queue] = []
    watch = QueueWatch(Path("/my project"), SINCE, pytest.fail, shown.append)
    watch.look()
    put(tools, "squeue", "echo Unable to contact slurm controller >&2; exit 1")
    watch.look()
    assert [job.state for job in shown[0].jobs] == ["PENDING"]
    assert shown[0].problem is None
    assert shown[1] == ([], "squeue ended with 1, saying: Unable to contact slurm controller")


def test_submissions_that_wait_are_told_once_for_each_cause(tools: Path, tmp_path: Path) -> None:
    (tools / "queue").write_text("")
    waiting = tmp_path / "project" / WAITING
    waiting.mkdir(parents=True)
    notes = [["AssocMaxSubmitJobLimit", True], ["AssocMaxSubmitJobLimit", True], ["Socket timed out", False]]
    for number, note in enumerate(notes):
        (waiting / f"{number}.json").write_text(json.dumps(note))
    said: list[str] = []
    watch = QueueWatch(tmp_path / "project", SINCE, said.append, lambda _: None)
    for _ in range(2):
        watch.look()
    limit, away = sorted(said, key=len, reverse=True)
    assert "(AssocMaxSubmitJobLimit): 2 jobs wait" in limit
    assert "`jobs` in the profile" in limit
    assert "at the moment: Socket timed out" in away
