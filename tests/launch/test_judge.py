"""The outcome of a job, by what its ranks reported, how its launcher exited and what it printed."""

import struct
from pathlib import Path
from typing import Any

import pytest

from job_files import make_job_file
from multicard.core.files import write_json
from multicard.core.layout import Outcome
from multicard.core.reasons import LONGEST_MESSAGE, Reason, describe_reason
from multicard.launch.judge import (
    JobFacts,
    MeasuredSteps,
    judge,
    judge_gpus,
    judge_profiler,
    measured_steps,
    profiler_failure,
    text_of,
)
from multicard.launch.supervise import Ended
from multicard.launch.training_checks import judge_training
from multicard.profilers import PROFILERS
from multicard.programs.script.parameters import ScriptParameters
from multicard.runs.rank_report import RankReport
from multicard.runs.record import GpuIdentity, Observed
from multicard.runs.verdict import Verdict

# As gloo, NCCL and the store of a process group say that another rank has gone.
LOST = [
    "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:544] Connection closed by peer [127.0.0.1]:4120",
    "RuntimeError: [pair.cc:552] Read error [127.0.0.1]:30: Connection reset by peer",
    "DistBackendError: NCCL error, remote process exited or there was a network error, NCCL version 2.28.9",
    "DistNetworkError: Failed to recv, got 0 bytes. Connection was likely closed. Did the remote server shutdown?",
]
# How torchrun ends: the first to fail comes last.
FAILURES = """
Failures:
[1]:
  time      : 2026-11-21_04:00:00
  host      : node
  rank      : {} (local_rank: {})
  exitcode  : {} (pid: 11)
  error_file: <N/A>
Root Cause (first observed failure):
[0]:
  time      : 2026-11-21_04:00:00
  host      : node
  rank      : {} (local_rank: {})
  exitcode  : {} (pid: 10)
  error_file: <N/A>
"""


def failures(other: tuple[int, int], first: tuple[int, int]) -> str:
    """The list of torchrun, of ranks and their exit codes."""
    return FAILURES.format(other[0], *other, first[0], *first)


def ended_as(outcome: Outcome, rank: int, code: str = "error", **facts: Any) -> RankReport:
    """The report of a rank."""
    reason = None if outcome == "completed" else Reason(code, rank=rank, **facts)
    return RankReport(rank=rank, outcome=outcome, reason=reason)


def failed(rank: int, message: str) -> RankReport:
    return ended_as("failed", rank, message=message)


def short(rank: int) -> RankReport:
    return ended_as("failed", rank, "too_few_steps", steps=4, needed_steps=9)


def verdict_on(
    reports: list[RankReport], exit_code: int = 1, log: str = "", timed_out: bool = False, **nodes: Any
) -> Verdict:
    """The verdict on a job of two ranks."""
    return judge(JobFacts(Ended(exit_code, timed_out, 1.0), reports, 2, 60.0, log, **nodes))


def judged(reports: list[RankReport], exit_code: int = 1, log: str = "", **nodes: Any) -> str:
    """Why a job of two ranks failed, in words."""
    verdict = verdict_on(reports, exit_code, log, **nodes)
    assert verdict.outcome == "failed"
    return describe_reason(verdict.reason)


COMPLETED = [ended_as("completed", rank) for rank in (0, 1)]


@pytest.mark.parametrize(
    ("records", "exit_code", "timed_out", "expected"),
    [
        (COMPLETED, 0, False, "completed"),
        # A profiler or launcher that ends badly after the ranks are done takes nothing from the run.
        (COMPLETED, 143, False, "completed"),
        (COMPLETED, 0, True, "completed"),
        (COMPLETED[:1], 0, True, "timed_out"),
        ([failed(0, "x"), ended_as("out_of_memory", 1, "out_of_memory")], 1, False, "out_of_memory"),
        ([ended_as("out_of_memory", 1, "out_of_memory")], 1, True, "out_of_memory"),  # the other waits to the end
        ([COMPLETED[0], ended_as("diverged", 1, "diverged")], 1, False, "diverged"),
        (COMPLETED[:1], 1, False, "failed"),
        ([COMPLETED[0], failed(1, "x")], 1, False, "failed"),
        ([], 0, False, "failed"),
    ],
)
def test_what_the_ranks_wrote_decides_the_outcome(
    records: list[RankReport], exit_code: int, timed_out: bool, expected: str
) -> None:
    verdict = verdict_on(records, exit_code, timed_out=timed_out)
    assert verdict.outcome == expected
    assert (verdict.reason is None) == (expected == "completed")


def test_a_broken_connection_is_the_reason_only_where_there_is_no_other(tmp_path: Path) -> None:
    for lost in LOST:
        assert judged([failed(0, lost), failed(1, "the cause")]) == "rank 1: the cause"
        assert judged([failed(0, lost), COMPLETED[1]]) == f"rank 0: {lost}"


def test_an_error_is_the_reason_before_ranks_that_waited_for_the_one_that_had_it(tmp_path: Path) -> None:
    waited = ended_as("failed", 0, "steps_disagree", step=21)
    assert judged([waited, failed(1, "FileNotFoundError: shard7")]) == "rank 1: FileNotFoundError: shard7"
    # An exit explains it, too, where there is no error.
    assert judged([waited, short(1)], 1, failures((0, -15), (1, 3))).startswith("rank 1: exit code 3")


def test_where_nothing_was_reported_the_reason_is_what_was_printed_last(tmp_path: Path) -> None:
    said = "train.py: error: the following arguments are required: --data"
    log = (
        f"usage: train.py\n{said}\nGenerated:\n\t/a\n"
        "E1123 10:00 7 torch/distributed/elastic/multiprocessing/api.py:988] failed (exitcode: 2) local_rank: 0\n"
    )
    assert judged([], 2, log) == f"exit code 2: {said}; rank 0, 1 exited without reporting"


@pytest.mark.parametrize(
    ("records", "exit_code", "listed", "reason"),
    [
        # Both ended between two looks of torchrun: it takes the one of the lower rank for the first.
        ([failed(0, LOST[0])], 1, ((1, -9), (0, 1)), "rank 1: killed by SIGKILL, as Linux does when memory runs out"),
        # torchrun kills what does not end by itself; that is not what went wrong.
        ([], 1, ((0, -9), (1, -11)), "rank 1: killed by SIGSEGV"),
        ([], 1, ((0, -9), (1, 1)), "exit code 1; rank 0, 1 exited without reporting"),
        ([failed(1, "ValueError: x")], 1, ((0, -9), (1, 1)), "rank 1: ValueError: x"),
        # Without its list: torchrun itself was killed, nsys exits as a shell does, no signal, and nobody else.
        ([], -9, None, "killed by SIGKILL, as Linux does when memory runs out; rank 0, 1 exited without reporting"),
        ([], 128 + 11, None, "killed by SIGSEGV; rank 0, 1 exited without reporting"),
        ([], 3, None, "exit code 3; rank 0, 1 exited without reporting"),
        ([failed(0, LOST[0]), failed(1, LOST[1])], -9, None, f"rank 0: {LOST[0]}"),
    ],
)
def test_of_ranks_that_did_not_report_the_first_to_exit_is_named(
    records: list[RankReport], exit_code: int, listed: Any, reason: str, tmp_path: Path
) -> None:
    assert judged(records, exit_code, failures(*listed) if listed else "") == reason


@pytest.mark.parametrize(
    ("records", "exit_code", "listed", "reason"),
    [
        ([short(0)], 0, None, "rank 0: the script ended after 4 of 9 steps"),
        ([short(0)], 3, None, "rank 0: exit code 3: out of samples"),
        ([short(0)], 1, ((1, -15), (0, 5)), "rank 0: exit code 5: out of samples"),
        ([short(0)], 1, ((1, -9), (1, -9)), "rank 0: the script ended after 4 of 9 steps"),
        # The one that the launcher did not end.
        ([short(0), short(1)], 1, ((0, -15), (1, 1)), "rank 1: exit code 1: out of samples"),
    ],
)
def test_a_script_that_exits_with_an_error_is_not_told_to_train_longer(
    records: list[RankReport], exit_code: int, listed: Any, reason: str, tmp_path: Path
) -> None:
    log = f"step 4, error: 0.3\nout of samples\n{failures(*listed) if listed else ''}"
    assert judged(records, exit_code, log).startswith(reason)


@pytest.mark.parametrize(
    ("records", "exit_code", "reason"),
    [
        ([failed(0, LOST[0])], 1, f"rank 0 on n1: {LOST[0]}; rank 1 on n2 exited without reporting"),
        ([failed(0, "ValueError: x")], 1, "rank 0 on n1: ValueError: x"),
        ([failed(0, LOST[0]), failed(1, "ValueError: x")], 1, "rank 1 on n2: ValueError: x"),
        ([], 128 + 15, "killed by SIGTERM; rank 0 on n1, 1 on n2 exited without reporting"),
    ],
)
def test_of_several_nodes_the_reason_names_the_one_that_failed(
    records: list[RankReport], exit_code: int, reason: str, tmp_path: Path
) -> None:
    assert judged(records, exit_code, node_of={0: "n1", 1: "n2"}) == reason


def test_of_several_nodes_the_one_of_a_killed_rank_or_of_one_that_disagrees_is_named() -> None:
    nodes = {0: "n1", 1: "n2"}
    assert judged([], 1, failures((0, -9), (1, -11)), node_of=nodes) == "rank 1 on n2: killed by SIGSEGV"
    assert judged([COMPLETED[1], short(0)], 0, node_of=nodes).startswith("rank 1 on n2: ")


def test_a_job_over_its_time_limit_states_the_limit() -> None:
    limit = Reason("timed_out", time_limit_s=60.0)
    assert verdict_on(COMPLETED[:1], 0, timed_out=True) == Verdict("timed_out", limit)


@pytest.mark.parametrize(
    ("ranks", "exit_code", "listed", "failure"),
    [
        ((0, 1), 0, None, None),
        ((0, 1), 1, None, "rank 0 on n1: exit code 1: out of samples"),
        ((0, 1), 127, None, "rank 0 on n1: exit code 127: out of samples"),
        # A signal ends what lingers.
        ((0, 1), 128, None, None),
        ((0, 1), 128 + 9, None, None),
        ((0, 1), -9, None, None),
        ((0, 1), 1, ((0, -15), (1, 3)), "rank 1 on n2: exit code 3: out of samples"),
        # The one that failed had not left early.
        ((0,), 1, ((1, 3), (1, 3)), None),
    ],
)
def test_ranks_that_leave_after_their_last_step_fail_by_their_exit_code(
    ranks: tuple[int, ...], exit_code: int, listed: Any, failure: str | None
) -> None:
    log = f"step 4, error: 0.3\nout of samples\n{failures(*listed) if listed else ''}"
    reports = [report.model_copy(update={"ended_early": report.rank in ranks}) for report in COMPLETED]
    verdict = verdict_on(reports, exit_code, log, node_of={0: "n1", 1: "n2"})
    assert verdict.outcome == ("failed" if failure else "completed")
    assert (None if verdict.reason is None else describe_reason(verdict.reason)) == failure


def test_a_completed_job_on_fewer_gpus_than_its_devices_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    def on(*uuids: str) -> list[RankReport]:
        return [
            RankReport(rank=rank, outcome="completed", gpus=tuple(GpuIdentity(uuid=uuid) for uuid in of_rank))
            for rank, of_rank in enumerate(uuids)
        ]

    assert judge_gpus(on("a", "b"), 2) == judge_gpus(on("ab"), 2) == Verdict("completed")  # by ddp, by dp
    for ranks, found in ((on("a", "a"), 1), (COMPLETED, 0)):
        verdict = judge_gpus(ranks, 2)
        assert verdict == Verdict("failed", Reason("wrong_gpus", devices=2, gpus=found))
        assert f"its 2 ranks shared GPUs (distinct: {found})" in describe_reason(verdict.reason)
    monkeypatch.setenv("MULTICARD_SHARED_GPU", "1")
    assert judge_gpus(on("a", "a"), 2) == Verdict("completed")


def test_the_step_time_that_is_printed_is_that_of_the_slowest_rank_of_each_epoch(tmp_path: Path) -> None:
    rows = ["rank,epoch,step,window,start_s,duration_s", "0,1,1,warmup,0,50"]
    rows += ["0,1,2,measured,50,1", "0,1,3,measured,51.5,1", "0,2,4,measured,90,1"]  # 2.5 s and 1 s for three steps
    rows += ["1,1,2,measured,50,1", "1,1,3,measured,51,1", "1,2,4,measured,90,1.5"]  # 2 s and 1.5 s
    (tmp_path / "steps.csv").write_text("\n".join(rows))
    assert measured_steps(tmp_path / "steps.csv", 2) == MeasuredSteps(3, pytest.approx(4 / 3))
    assert measured_steps(tmp_path / "steps.csv") == MeasuredSteps(3, pytest.approx(4 / 3))
    (tmp_path / "steps.csv").write_text("\n".join(rows[:-1]))  # the last step of a rank that was killed
    assert measured_steps(tmp_path / "steps.csv", 2) == MeasuredSteps(2, pytest.approx(2.5 / 2))
    assert measured_steps(tmp_path / "steps.csv", 3) is None  # a rank has left none
    (tmp_path / "steps.csv").write_text("\n".join(rows[:2]))
    assert measured_steps(tmp_path / "steps.csv", 2) is None


def test_a_rank_that_made_too_few_steps_where_another_made_enough_disagrees_with_that(tmp_path: Path) -> None:
    said = "rank 0: another rank ended before step 5; every rank has to make the same number of steps"
    assert judged([COMPLETED[0], short(1)], exit_code=0) == said
    # Not where the other one failed in another way after as many steps.
    other = ended_as("failed", 1, steps=4, message="ValueError: x")
    assert judged([COMPLETED[0], other], exit_code=0) == "rank 1: ValueError: x"


EARLY = [RankReport(rank=rank, outcome="completed", ended_early=True) for rank in (0, 1)]


@pytest.mark.parametrize(
    ("exit_code", "listed", "judged"),
    [
        (0, "", ("completed", None)),
        (1, FAILURES.format(0, 0, -15, 1, 1, 3), ("failed", (1, 3))),  # torchrun ended the other one
        (2, "Evaluation failed\n", ("failed", (0, 2))),
    ],
)
def test_ranks_that_left_by_themselves_after_their_measured_steps_have_completed_unless_they_failed_then(
    exit_code: int, listed: str, judged: Any, tmp_path: Path
) -> None:
    verdict = verdict_on(EARLY, exit_code, listed)
    assert (verdict.outcome, verdict.reason and (verdict.reason.rank, verdict.reason.exit_code)) == judged


# What is judged further of a script: which of its processes trained, and how far they came.


def script(
    folder: Path, *trained: int, made: tuple[int, ...] = (), profiled: int = 10, **changes: Any
) -> ScriptParameters:
    """A job of two devices of which these ranks trained, each in a process, and made so many steps."""
    for number, rank in enumerate(trained):
        facts = {"rank": rank, "steps": True, "program": "train.py", "error": None}
        write_json(folder / f"process.json.{number}", facts)
    for rank, count in enumerate(made):
        (folder / f"made.rank{rank}").write_bytes(struct.pack("q", count))
    p = ScriptParameters(**({"command": ["train.py"], "device": "cpu", "devices": 2} | changes))
    windows = {"warmup_steps": p.warmup_steps, "measured_steps": p.steps, "profiled_steps": profiled}
    make_job_file(folder, **windows).write()
    return p


@pytest.mark.parametrize(
    ("exchanged", "outcome"),
    [([False, False], "failed"), ([False, True], "completed"), ([None, False], "completed"), ([False], "completed")],
)
def test_only_ranks_of_which_none_exchanged_anything_trained_apart(
    exchanged: list[bool | None], outcome: str, tmp_path: Path
) -> None:
    ranks = [
        COMPLETED[rank].model_copy(update={"observed": Observed(exchanged=entry)})
        for rank, entry in enumerate(exchanged)
    ]
    p = script(tmp_path, *range(len(ranks)), devices=len(ranks))
    found, reason = judge_training(p, Verdict("completed", None), ranks, tmp_path)
    assert found == outcome
    if outcome == "failed":
        assert reason == Reason("trained_apart", ranks=2)
        said = describe_reason(reason)
        assert "init_process_group" in said and "DistributedSampler" not in said


@pytest.mark.parametrize(
    ("ended", "devices", "trained", "completed", "expected"),
    [
        ("exited", 2, [0, 0], [0], Reason("same_rank", rank=0, ranks=2)),
        ("timed_out", 2, [0, 0], [0], Reason("same_rank", rank=0, ranks=2)),  # one that takes no notice
        ("timed_out", 2, [1, 1], [], Reason("same_rank", rank=1, ranks=2)),
        ("timed_out", 1, [0, 0], [], Reason("hidden_ranks", ranks=2, devices=1)),
        ("timed_out", 2, [0, 1], [], Reason("timed_out")),
        ("timed_out", 2, [0], [0], Reason("timed_out")),  # the other one may hang
        ("exited", 2, [0], [0], Reason("hidden_ranks", ranks=1, devices=2)),
    ],
)
def test_ranks_that_are_hidden_are_named_before_what_they_bring_about(
    ended: str, devices: int, trained: list[int], completed: list[int], expected: Reason, tmp_path: Path
) -> None:
    p = script(tmp_path, *trained, devices=devices)
    outcome = "timed_out" if ended == "timed_out" else "failed"
    reason = Reason(ended, exit_code=0) if ended == "exited" else Reason(ended)
    found = judge_training(p, Verdict(outcome, reason), [COMPLETED[rank] for rank in completed], tmp_path)
    assert found == ("timed_out" if expected.code == "timed_out" else "failed", expected)


@pytest.mark.parametrize(
    ("made", "said"),
    [
        ((5, 5), ": it had made 5 of at least 72 steps"),  # 10 + 50 + 2 + 10
        ((30, 22), ": steps made: rank 0 30, rank 1 22; every rank has to make the same number"),
        ((30,), ": steps made: rank 0 30, rank 1 0; every rank has to make the same number"),
        ((0, 0), ""),
    ],
)
def test_a_script_that_reaches_its_time_limit_is_told_how_far_it_came(
    made: tuple[int, ...], said: str, tmp_path: Path
) -> None:
    p = script(tmp_path, *range(len(made)), made=made)
    outcome, reason = judge_training(p, Verdict("timed_out", Reason("timed_out", time_limit_s=3600)), [], tmp_path)
    assert outcome == "timed_out"
    assert describe_reason(reason) == f"exceeded its time limit of 60 min{said}"


def test_a_script_without_an_optimizer_that_reaches_its_time_limit_is_told_so(tmp_path: Path) -> None:
    facts = {"python": "3.12.0", "torch": "2.11.0", "rank": None, "steps": False, "program": "train.py", "error": None}
    write_json(tmp_path / "process.json.1", facts)
    outcome, reason = judge_training(script(tmp_path), Verdict("timed_out", Reason("timed_out")), [], tmp_path)
    assert (outcome, reason.code) == ("timed_out", "no_steps")


def test_ranks_that_were_ended_because_one_exited_are_not_told_to_agree(tmp_path: Path) -> None:
    p = script(tmp_path, 0, 1, made=(17, 16))
    _, reason = judge_training(p, Verdict("failed", Reason("exited", exit_code=3)), [], tmp_path)
    assert describe_reason(reason) == "exit code 3: steps made: rank 0 17, rank 1 16"


def test_one_process_that_uses_fewer_gpus_than_it_has_is_told_so(tmp_path: Path) -> None:
    on_gpus = {"device": "cuda", "devices": 4, "launcher": "python"}
    found = Reason("wrong_gpus", devices=4, gpus=3)
    p = script(tmp_path, 0, **on_gpus)
    assert judge_training(p, Verdict("failed", found), COMPLETED[:1], tmp_path)[1] == Reason(
        "unused_gpus", devices=4, gpus=3
    )
    assert judge_training(p, Verdict("completed", None), COMPLETED[:1], tmp_path) == ("completed", None)
    p = script(tmp_path, 0, 1, **on_gpus)  # by mp.spawn
    assert judge_training(p, Verdict("failed", found), COMPLETED[:1], tmp_path)[1] == Reason(
        "hidden_ranks", ranks=2, devices=1
    )


@pytest.mark.parametrize(("devices", "hinted"), [(1, True), (2, False)])
def test_a_script_that_expects_a_launcher_is_told_how_to_get_one(devices: int, hinted: bool, tmp_path: Path) -> None:
    reason = Reason("error", rank=0, message="KeyError: 'WORLD_SIZE'")
    outcome, found = judge_training(script(tmp_path, devices=devices), Verdict("failed", reason), [], tmp_path)
    assert outcome == "failed" and ("state launcher: torchrun" in found.message) is hinted


NODE_FAILURE = "srun: error: Node failure on n2\nsrun: Force Terminated StepId=7.0\n"


@pytest.mark.parametrize(
    ("records", "exit_code", "says"),
    [
        ([], 137, "n2 was lost (Slurm: node failure); rank 0 on n1, 1 on n2 exited without reporting"),
        ([failed(0, LOST[0])], 137, "n2 was lost (Slurm: node failure); rank 1 on n2 exited without reporting"),
        # A rank had failed before.
        ([failed(0, "no such file")], 1, "rank 0 on n1: no such file"),
    ],
)
def test_a_node_that_slurm_says_is_lost_is_the_reason(
    tmp_path: Path, records: list[RankReport], exit_code: int, says: str
) -> None:
    nodes = {0: "n1", 1: "n2"}
    assert judged(records, exit_code, NODE_FAILURE, node_of=nodes) == says
    # A script on one node may print what it likes.
    assert "lost" not in judged([], 137, NODE_FAILURE)


def test_a_profiler_that_failed_by_itself_is_the_reason_where_no_rank_reported_an_error(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    log.write_text("Agent launcher failed.\nRuntimeError: x\n")
    for code in ("exited", "killed"):
        reason = judge_profiler(Reason(code), PROFILERS["nsys"], Ended(1, False, 1.0), log)
        assert reason == Reason("profiler_failed", message="nsys: Agent launcher failed.")
    for profiler, code in (("nsys", "error"), ("kineto", "exited")):
        assert judge_profiler(Reason(code), PROFILERS[profiler], Ended(1, False, 1.0), log) == Reason(code)


def test_how_a_profiler_failed_has_what_it_printed_last_and_that_it_had_failed_before(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    log.write_text("no such option\n")
    ended = Ended(1, False, 1.0, profiler_failure="it exited with 1", profiler_failed_before="it hung")
    failure = profiler_failure(PROFILERS["nsys"], ended, log)
    assert failure == "nsys: it exited with 1; no such option; at an earlier start it failed too"
    log.write_text("x" * 10_000)
    assert len(profiler_failure(PROFILERS["nsys"], ended, log) or "") == LONGEST_MESSAGE


def test_a_log_is_read_whatever_bytes_a_job_printed(tmp_path: Path) -> None:
    (tmp_path / "log.txt").write_bytes("naïve ".encode() + b"\xff")
    assert text_of(tmp_path / "log.txt") == "naïve \ufffd"
    assert text_of(tmp_path / "none.txt") == ""


def test_what_was_printed_before_an_error_is_not_the_reason_and_a_long_line_is_cut() -> None:
    log = f"RuntimeError: {'x' * 10_000}\nbye\n"
    message = verdict_on([], 1, log).reason.message
    assert message.startswith("RuntimeError: xxx") and len(message) == LONGEST_MESSAGE
