"""Nodes end together: whoever fails waits for the others, and they end when told. Tests/slurm has real nodes."""

import json
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from conftest import TINY, refusal
from multicard.core.layout import NODE, node_file
from multicard.launch import several_nodes
from multicard.launch.ending import deferred_signals, end_process
from multicard.launch.several_nodes import OtherTasks, Patience, run_on_nodes, states_of_tasks
from multicard.launch.supervise import Ended
from multicard.programs.vision.parameters import VisionParameters

AWAY = "srun: error: Unable to create step for job 21: Unable to contact slurm controller (connect failure)\n"


QUICK = Patience(pause_s=0.01, look_s=0.01)


@pytest.mark.parametrize("ends", [{"failed": True, "timed_out": False}, {"failed": False, "timed_out": True}])
def test_a_task_ends_when_another_one_has_failed_or_reached_the_time_limit(
    tmp_path: Path, ends: dict[str, bool]
) -> None:
    first, second = (OtherTasks(tmp_path, task, 2, QUICK) for task in range(2))
    first.report(**ends)
    with (
        deferred_signals() as signals,
        pytest.raises(SystemExit) as told,
        signals.delivered(end_process),
        second.watched(),
    ):
        time.sleep(60)
    assert (told.value.code, second.have_failed) == (128 + signal.SIGTERM, True)


def test_a_task_goes_on_beside_one_that_has_completed(tmp_path: Path) -> None:
    first, second = (OtherTasks(tmp_path, task, 2, QUICK) for task in range(2))
    first.report(failed=False, timed_out=False)
    with deferred_signals() as signals, signals.delivered(end_process), second.watched():
        time.sleep(0.1)
    assert not second.have_failed


def test_a_failed_task_waits_until_all_have_reported_but_not_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = [OtherTasks(tmp_path, task, 3, QUICK) for task in range(3)]
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) < 3:
            tasks[len(slept)].report(failed=False, timed_out=False)

    monkeypatch.setattr(several_nodes.time, "sleep", sleep)
    tasks[0].report(failed=True, timed_out=False)
    tasks[0].wait()
    assert len(slept) == 2
    OtherTasks(tmp_path, 0, 9, Patience(other_tasks_s=0.0)).wait()
    assert [state.failed for state in states_of_tasks(tmp_path, 9)] == [True, False, False]


@pytest.fixture
def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run a job on two nodes where srun is played: each call of it prints, and maybe starts the nodes."""

    def run_played(
        *calls: tuple[int, str, list[dict[str, bool]] | None], patience: Patience = QUICK
    ) -> tuple[Ended, int]:
        left = list(calls)

        def run(_command: Any, _variables: Any, log: Path, *_: Any, **_limits: Any) -> Ended:
            code, printed, states = left.pop(0)
            log.write_text(printed)
            for task, state in enumerate(states or ()):
                (tmp_path / node_file(NODE, task)).write_text(json.dumps({"name": f"n{task}"}))
                OtherTasks(tmp_path, task, 2).report(**state)
            return Ended(code, False, 1.0)

        monkeypatch.setattr(several_nodes, "run", run)
        p = VisionParameters(**TINY | {"strategy": "ddp", "devices": 2, "nodes": 2})
        _, ended = run_on_nodes(p, tmp_path, tmp_path / "job.json", tmp_path / "log.txt", 60.0, print, patience)
        return ended, len(calls) - len(left)

    return run_played


COMPLETED, TIMED_OUT = ({"failed": False, "timed_out": timed_out} for timed_out in (False, True))


def test_what_nodes_say_of_the_time_limit_counts(nodes: Any) -> None:
    assert nodes((0, "", [COMPLETED, COMPLETED])) == (Ended(0, False, 1.0), 1)
    assert nodes((0, "", [TIMED_OUT, COMPLETED])) == (Ended(0, True, 1.0), 1)


def test_nodes_are_started_again_while_the_controller_does_not_answer(
    nodes: Any,
) -> None:
    ended, calls = nodes((1, AWAY, None), (1, AWAY, None), (0, "", [COMPLETED, COMPLETED]))
    assert (ended.exit_code, calls) == (0, 3)


def test_a_controller_that_stays_away_is_no_outcome(nodes: Any) -> None:
    said = refusal(lambda: nodes((1, AWAY, None), patience=Patience(no_answer_s=0.0)))
    assert said.startswith(
        "cannot start on the nodes: srun: error: Unable to create step for job 21: Unable to contact"
    )
    assert said.endswith("; start again when Slurm answers")


def test_what_fails_on_the_nodes_is_not_started_again(nodes: Any) -> None:
    # The controller went away later: the nodes had started.
    assert nodes((1, AWAY, [COMPLETED]))[1] == 1
    assert (
        nodes(
            (1, "srun: error: Unable to create step for job 21: Invalid generic resource (gres) specification", None)
        )[1]
        == 1
    )
