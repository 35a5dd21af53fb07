"""Of several checks that object to a script's job, the one that names the cause decides."""

from pathlib import Path
from typing import Any

import pytest

from multicard.core.reasons import Reason
from multicard.launch.training_checks import CHECKS, ObservedProcess, TrainingFacts, first_verdict
from multicard.programs.script.parameters import ScriptParameters
from multicard.runs.rank_report import RankReport
from multicard.runs.record import Observed

COMPLETED = RankReport(rank=0, outcome="completed")
APART = COMPLETED.model_copy(update={"observed": Observed(exchanged=False)})
WRONG_GPUS = Reason("wrong_gpus", devices=2, gpus=1)
EXITED = Reason("exited", exit_code=1)
FAILED = {"outcome": "out_of_memory", "reason": {"code": "out_of_memory", "message": "no memory"}}


def process(rank: int | None = None, program: str = "train.py", **facts: Any) -> ObservedProcess:
    known = {"python": "3.12.0", "torch": "2.9.0", "has_run_backward": False, "error": None}
    return ObservedProcess(**({"program": program, "rank": rank, "has_stepped": rank is not None} | known | facts))


def judged(
    outcome: str,
    reason: Reason | None,
    ranks: list[RankReport],
    *processes: ObservedProcess,
    is_complete: bool = True,
    **changes: Any,
) -> TrainingFacts:
    p = ScriptParameters(**({"command": ["train.py"], "device": "cpu", "devices": 2} | changes))
    trained = sum(process.has_stepped for process in processes)
    return TrainingFacts(p, Path(), outcome, reason, ranks, processes, trained, is_complete)


ONE_PROCESS = {"device": "cuda", "launcher": "python"}
# Facts, and the codes of all reasons by which a check objects to them, in the order of the checks.
CASES = {
    "no GPU and no step": (
        judged("failed", Reason("wrong_gpus", devices=2, gpus=0), [], **ONE_PROCESS),
        ["trained_on_cpu", "no_steps", "hidden_ranks", "unused_gpus"],
    ),
    "no step": (judged("completed", None, []), ["no_steps", "hidden_ranks"]),
    "too many that claim one rank": (
        judged("completed", None, [APART, APART], process(0), process(0), process(0)),
        ["hidden_ranks", "same_rank", "trained_apart"],
    ),
    "two that claim one rank": (
        judged("timed_out", Reason("timed_out"), [APART, APART], process(0), process(0)),
        ["same_rank", "trained_apart"],
    ),
    "ranks apart": (judged("completed", None, [APART, APART], process(0), process(1)), ["trained_apart"]),
    "ranks apart as configured": (
        judged("completed", None, [APART, APART], process(0), process(1), ablate="communication"),
        [],
    ),
    "processes on GPUs of one launcher": (
        judged("failed", WRONG_GPUS, [COMPLETED], process(0), process(1), **ONE_PROCESS),
        ["hidden_ranks", "unused_gpus"],
    ),
    "a GPU to spare": (judged("failed", WRONG_GPUS, [COMPLETED], process(0), **ONE_PROCESS), ["unused_gpus"]),
    "an error of a process": (judged("failed", EXITED, [], process(error=FAILED)), ["out_of_memory"]),
    "an error of a launcher": (
        judged("failed", EXITED, [], process(program="torch.distributed.run", error=FAILED)),
        [],
    ),
    "an error that the script survived": (
        judged("failed", Reason("exited", exit_code=0), [], process(0), process(1), process(error=FAILED)),
        [],
    ),
    "the limit without a step": (judged("timed_out", Reason("timed_out"), [], process()), ["no_steps"]),
    "the limit on a lost node": (
        judged("timed_out", Reason("timed_out"), [], process(), is_complete=False),
        [],
    ),
}


@pytest.mark.parametrize(("facts", "codes"), CASES.values(), ids=CASES)
def test_the_first_check_that_objects_decides(facts: TrainingFacts, codes: list[str]) -> None:
    verdicts = [verdict for check in CHECKS if (verdict := check(facts)) is not None]
    assert [reason.code for _, reason in verdicts] == codes
    assert first_verdict(facts) == (verdicts[0] if verdicts else (facts.outcome, facts.reason))


def test_the_script_explains_what_it_started() -> None:
    other = {"outcome": "failed", "reason": {"code": "error", "message": "a worker"}}
    facts = judged("failed", EXITED, [], process(program="worker.py", error=other), process(error=FAILED))
    assert first_verdict(facts) == ("out_of_memory", Reason("out_of_memory", message="no memory"))
