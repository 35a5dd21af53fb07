"""Jobs that will not start are named, preempted ones are requeued. Slurm's tools are fakes, its plugin is real."""

import asyncio
import importlib
import logging
from datetime import datetime
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from multicard.core.errors import UserError
from multicard.launch.slurm_plugin import name_jobs_after_runs
from multicard.launch.slurm_watch import QueueWatch, refuse_orphans

SINCE = datetime(2026, 1, 1, 12)
AFTER, BEFORE = "2026-01-01T12:00:00", "2026-01-01T11:59:59"


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of fakes: a squeue that prints the file `queue`, and a scontrol that notes what it is asked for."""
    for name, script in (("squeue", f"cat {tmp_path}/queue"), ("scontrol", f'echo "$@" >> {tmp_path}/asked')):
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    return tmp_path


def said(tools: Path, *jobs: str, times: int = 1) -> list[str]:
    (tools / "queue").write_text("".join(f"{job}\n" for job in jobs))
    messages: list[str] = []
    watch = QueueWatch(Path("/my project"), SINCE, messages.append)
    for _ in range(times):
        watch.look()
    return messages


def job(
    state: str, reason: str = "None", submitted: str = AFTER, folder: str = "/my project", of: str = "rule_a"
) -> str:
    return f"7|{state}|{reason}|{submitted}|{folder}|{of}"


DRAINED = "Nodes_required_for_job_are_DOWN,_DRAINED_or_reserved_for_jobs_in_higher_priority_partitions"


@pytest.mark.parametrize(
    ("reason", "says"),
    [
        ("PartitionTimeLimit", "will not start: PartitionTimeLimit; ask for less"),
        ("AssocMaxWallDurationPerJobLimit", "will not start: AssocMaxWallDurationPerJobLimit; ask for less"),
        ("InvalidAccount", "will not start: InvalidAccount; state another slurm_account"),
        ("JobHeldUser", "will not start: JobHeldUser; release it with `scontrol release`"),
        ("ReqNodeNotAvail, UnavailableNodes:n1", "is waiting: ReqNodeNotAvail, UnavailableNodes:n1"),
        (DRAINED, "is waiting: Nodes required for job are DOWN, DRAINED or reserved"),
        (DRAINED.replace("_", " "), "is waiting: Nodes required for job are DOWN, DRAINED or reserved"),
        # One that waits its turn is not named.
        ("Priority", None),
        ("Resources", None),
        ("Dependency", None),
        ("None", None),
        ("AssocGrpCpuLimit", None),
    ],
)
def test_a_job_that_will_not_start_soon_is_named_once_with_the_reason(
    tools: Path, reason: str, says: str | None
) -> None:
    lines = said(tools, job("PENDING", reason), times=3)
    assert len(lines) == (says is not None)
    assert all(line.startswith(f"Slurm job 7 (rule_a) {says}") for line in lines)


def test_jobs_that_wait_for_the_same_reason_share_a_line(tools: Path) -> None:
    queue = [job("PENDING", "QOSMaxJobsPerUserLimit").replace("7|", f"{number}|", 1) for number in range(20)]
    [line] = said(tools, *queue, times=2)
    assert line.startswith("Slurm job 0 (rule_a) and 19 more are waiting: QOSMaxJobsPerUserLimit")


def test_jobs_of_others_are_not_looked_at(tools: Path) -> None:
    other = {"folder": "/elsewhere"}, {"of": "my own job"}, {"submitted": BEFORE}
    for changes in other:
        assert said(tools, job("PENDING", "BadConstraints", **changes), job("PREEMPTED", **changes)) == []
    assert not (tools / "asked").exists()


def test_a_preempted_job_is_requeued_or_named_once_with_the_remedy(tools: Path) -> None:
    assert said(tools, job("PREEMPTED")) == ["Slurm job 7 (rule_a) was preempted and is requeued"]
    assert (tools / "asked").read_text() == "requeue 7\n"
    (tools / "scontrol").write_text("#!/bin/sh\necho Requested operation is presently disabled >&2; exit 1\n")
    [line] = said(tools, job("PREEMPTED"), times=3)
    assert "cannot be requeued: scontrol ended with 1, saying: Requested operation is presently disabled" in line
    assert line.endswith("press Ctrl-C and start again")


def test_a_requeued_job_is_named_once_for_each_time(tools: Path) -> None:
    messages: list[str] = []
    watch = QueueWatch(Path("/my project"), SINCE, messages.append)
    for state in ("PENDING", "RUNNING", "PENDING", "PENDING", "RUNNING", "PENDING"):
        (tools / "queue").write_text(job(state, "BeginTime") + "\n")
        watch.look()
    assert messages == ["Slurm job 7 (rule_a) was requeued: it starts again"] * 2


@pytest.mark.parametrize("is_ending", [True, False])
def test_what_was_submitted_while_the_pipeline_ended_is_cancelled(
    is_ending: bool, tools: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cancelled, others = [job("PENDING"), job("RUNNING").replace("7", "8", 1)], [
        job("COMPLETED"), job("CANCELLED"), job("PENDING", submitted=BEFORE), job("PENDING", folder="/elsewhere"),
    ]  # fmt: skip
    (tools / "scancel").write_text(f'#!/bin/sh\necho "$@" >> {tools}/asked\n')
    (tools / "scancel").chmod(0o755)
    watch = QueueWatch(Path("/my project"), SINCE, pytest.fail)
    if is_ending:
        watch.ending.set()
        (tools / "queue").write_text(job("PREEMPTED") + "\n")  # which is left alone
        watch.look()
    (tools / "queue").write_text("".join(f"{each}\n" for each in (*others, *cancelled)))
    watch.cancel_left()
    assert (tools / "asked").exists() == is_ending
    if is_ending:
        assert (tools / "asked").read_text() == "7 8\n"
        assert "cancelled 2 Slurm jobs" in capsys.readouterr().err


def test_slurm_is_asked_in_its_own_form_and_again_where_it_does_not_answer(
    tools: Path, monkeypatch: pytest.MonkeyPatch, popen_options: dict[str, Any]
) -> None:
    monkeypatch.setenv("SLURM_TIME_FORMAT", "%s")
    (tools / "squeue").write_text(f'#!/bin/sh\n[ "$SLURM_TIME_FORMAT" = standard ] && cat {tools}/queue\n')
    assert len(said(tools, job("PENDING", "PartitionTimeLimit"))) == 1
    assert popen_options.get("preexec_fn") is None  # from a thread there is no Python between fork and exec
    (tools / "squeue").write_text("#!/bin/sh\necho Unable to contact slurm controller >&2; exit 1\n")
    assert said(tools, times=2) == []


def test_jobs_of_an_earlier_start_are_refused_by_name(tools: Path) -> None:
    of_run = "rule_launch_run_wildcards_vision_r1"
    (tools / "queue").write_text(
        f"{job('RUNNING', submitted=BEFORE, of=of_run)}\n{job('COMPLETED', submitted=BEFORE)}\n"
        f"{job('RUNNING', folder='/elsewhere')}\n"
    )
    with pytest.raises(UserError, match=r"^1 Slurm job .*: 7 \(vision_r1\); .* scancel 7$"):
        refuse_orphans(Path("/my project"))
    (tools / "queue").write_text(job("CANCELLED") + "\n")
    refuse_orphans(Path("/my project"))


# What Snakemake's plugin for Slurm makes of its jobs, on which the settings of profiles/slurm
# rely on. When one of these tests fails, the plugin has changed, and the settings can do less.
JOB = "7"


class Unlimited:
    """A limit of the rate of questions that lets all through."""

    async def __aenter__(self) -> None: ...

    async def __aexit__(self, *_: object) -> None: ...


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The plugin, asked by squeue."""
    module = importlib.import_module("snakemake_executor_plugin_slurm")
    monkeypatch.setattr(module, "get_min_job_age", lambda: 300)
    monkeypatch.setattr(module, "is_query_tool_available", lambda _: True)
    return module


def polled(plugin: ModuleType, monkeypatch: pytest.MonkeyPatch, *answers: str | None, attempts: int = 1) -> list[str]:
    """What the plugin makes of its job as Slurm gives these states of it; None: the question fails."""
    left = list(answers)

    async def query_job_status(_command: str, _logger: Any) -> tuple[dict[str, str] | None, float | None]:
        state = left.pop(0)
        return (None, None) if state is None else ({JOB: state}, 0.0)

    monkeypatch.setattr(plugin, "query_job_status", query_job_status)
    ends: list[str] = []
    executor: Any = plugin.Executor.__new__(type("Polled", (plugin.Executor,), {"status_rate_limiter": Unlimited()}))
    settings = SimpleNamespace(
        init_seconds_before_status_checks=1, status_attempts=attempts, requeue=True, keep_successful_logs=True
    )
    vars(executor).update(
        logger=logging.getLogger("plugin"),
        workflow=SimpleNamespace(executor_settings=settings),
        run_uuid="run",
        get_status_command=lambda: "squeue",
        report_job_error=lambda *_, **__: ends.append("failed"),
        report_job_success=lambda *_: ends.append("completed"),
        _next_seconds_between_status_checks=1,
        _preemption_warning=False,
        _failed_nodes=set(),
        _status_query_cycle_rows=[],
        _status_query_calls=0,
        _status_query_failures=0,
        _status_query_total_seconds=0.0,
        _status_query_max_seconds=0.0,
        _status_query_min_seconds=None,
    )
    active = SimpleNamespace(external_jobid=JOB, aux={})

    async def look() -> str:
        running = [one async for one in executor.check_active_jobs([active])]
        return "running" if running else ends[-1] if ends else "forgotten"

    looks = []
    while left:
        looks.append(asyncio.run(look()))
    return looks


@pytest.mark.parametrize(
    ("states", "attempts", "looks"),
    [
        # It waits for a preempted job until that is requeued.
        (("PREEMPTED", "PREEMPTED"), 1, ["running"] * 2),
        (("RUNNING", "PREEMPTED", "PENDING", "RUNNING", "COMPLETED"), 1, ["running"] * 4 + ["completed"]),
        # It forgets its jobs when Slurm does not answer, which enough attempts prevent.
        ((None,), 1, ["forgotten"]),
        ((None, None, None, "COMPLETED"), 4, ["completed"]),
        # It waits for a cancelled job when it asks sacct.
        (("CANCELLED by 1000",), 1, ["running"]),
        (("CANCELLED",), 1, ["failed"]),
    ],
)
def test_the_plugin_does_what_is_reported_of_it(
    states: tuple[str | None, ...], attempts: int, looks: list[str], plugin: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert polled(plugin, monkeypatch, *states, attempts=attempts) == looks


def test_jobs_are_named_after_their_runs_and_found_by_their_ids(
    plugin: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("get_submit_command", "query_job_status_squeue", "query_job_status_sacct"):
        monkeypatch.setattr(plugin, name, getattr(plugin, name))  # put back after the test
    name_jobs_after_runs()
    params = {
        "run_uuid": "a-uuid", "slurm_logfile": "log", "comment_str": "rule_launch_run_wildcards_vision_r1",
        "account": "", "partition": "", "workdir": "",
    }  # fmt: skip
    one = SimpleNamespace(resources=AttributeDict(mem_mb=1000, nodes=1), threads=1, is_group=lambda: False)
    assert " --job-name vision_r1 " in plugin.get_submit_command(one, params)
    for query in (plugin.query_job_status_squeue, plugin.query_job_status_sacct):
        assert "--name" not in query("a-uuid") and "a-uuid" not in query("a-uuid")
    assert plugin.query_job_status_squeue("a-uuid").endswith(" --me")


class AttributeDict(dict[str, Any]):
    """Resources of a job, as Snakemake has them."""

    __getattr__ = dict.__getitem__
