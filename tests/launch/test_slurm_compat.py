"""Jobs that Slurm has ended for good end for Snakemake too. The plugin is the real one, Slurm's answers are made."""

import asyncio
import importlib
import logging
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from multicard.core.errors import UserError
from multicard.launch.slurm_compat import count_lost_jobs_as_failed

JOB = "7"


class Unlimited:
    """A limit of the rate of questions that lets all through."""

    async def __aenter__(self) -> None: ...

    async def __aexit__(self, *_: object) -> None: ...


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The plugin, asked by squeue; what is put into it is taken out again."""
    module = importlib.import_module("snakemake_executor_plugin_slurm")
    monkeypatch.setattr(module, "get_min_job_age", lambda: 300)
    monkeypatch.setattr(module, "is_query_tool_available", lambda _: True)
    monkeypatch.setattr(module, "query_job_status", module.query_job_status)
    return module


def answer(plugin: ModuleType, *states: str | None) -> None:
    """Let Slurm give these states of the job, one after the other; None: the question fails."""
    left = iter(states)

    async def query_job_status(_command: str, _logger: Any) -> tuple[dict[str, str] | None, float | None]:
        state = next(left)
        return (None, None) if state is None else ({JOB: state}, 0.0)

    plugin.query_job_status = query_job_status  # type: ignore[attr-defined]


def polled(plugin: ModuleType, times: int) -> list[str]:
    """What the plugin makes of its job in each of several looks at it."""
    ends: list[str] = []
    executor: Any = plugin.Executor.__new__(type("Polled", (plugin.Executor,), {"status_rate_limiter": Unlimited()}))
    settings = SimpleNamespace(
        init_seconds_before_status_checks=1, status_attempts=1, requeue=False, keep_successful_logs=True
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
    job = SimpleNamespace(external_jobid=JOB, aux={})

    async def look() -> str:
        running = [active async for active in executor.check_active_jobs([job])]
        return "running" if running else ends[-1] if ends else "forgotten"

    return [asyncio.run(look()) for _ in range(times)]


def test_the_plugin_by_itself_waits_for_lost_jobs_and_forgets_jobs_when_slurm_does_not_answer(
    plugin: ModuleType,
) -> None:
    # When this fails, the plugin has learned something, and multicard.launch.slurm_compat can do less.
    answer(plugin, "RUNNING", "PREEMPTED", "PREEMPTED", "CANCELLED by 1000", None)
    assert polled(plugin, 5) == ["running"] * 4 + ["forgotten"]


def test_a_job_that_was_preempted_and_is_not_requeued_has_failed(
    plugin: ModuleType, caplog: pytest.LogCaptureFixture
) -> None:
    answer(plugin, "PENDING", "RUNNING", "PREEMPTED", "PREEMPTED")
    count_lost_jobs_as_failed(plugin, requeued=False)
    assert polled(plugin, 4) == ["running", "running", "failed", "failed"]
    assert [record.getMessage() for record in caplog.records].count(
        "Slurm job 7 was preempted and counts as cancelled"
    ) == 1


def test_a_job_that_slurm_requeues_is_waited_for(plugin: ModuleType) -> None:
    answer(plugin, "PREEMPTED", "PREEMPTED", "PENDING", "RUNNING", "COMPLETED")
    count_lost_jobs_as_failed(plugin, requeued=True)
    assert polled(plugin, 5) == ["running"] * 4 + ["completed"]


def test_a_job_that_somebody_cancelled_has_failed_though_sacct_names_them(plugin: ModuleType) -> None:
    answer(plugin, "RUNNING", "CANCELLED by 1000")
    count_lost_jobs_as_failed(plugin, requeued=False)
    assert polled(plugin, 2) == ["running", "failed"]


def test_a_slurm_that_does_not_answer_is_asked_again(plugin: ModuleType) -> None:
    answer(plugin, None, None, "RUNNING", "COMPLETED")
    count_lost_jobs_as_failed(plugin, requeued=False)
    assert polled(plugin, 4) == ["running"] * 3 + ["completed"]


@pytest.mark.parametrize("has", [{}, {"query_job_status": lambda command, logger: None}])
def test_a_plugin_that_asks_in_another_way_is_refused_in_one_line(has: dict[str, Any]) -> None:
    other = ModuleType("snakemake_executor_plugin_slurm")
    vars(other).update(has)
    with pytest.raises(UserError, match=r"^snakemake_executor_plugin_slurm: found no coroutine query_job_status.*lock"):
        count_lost_jobs_as_failed(other, requeued=False)
