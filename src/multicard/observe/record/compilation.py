"""Detect torch.compile, report when it compiles, and raise the limit on how often it does."""

import sys
from collections.abc import Callable
from typing import Any

import torch


def allow_compilations(blocks: int) -> None:
    """Let torch.compile compile one function up to eight times for each of `blocks` blocks of a model.

    Blocks of the same class share their functions. Dynamo compiles such a function again for each block that it does
    not trace together with the others. By default it stops after eight compilations, and runs the function uncompiled
    for all further blocks. Limits that are higher already stay.
    """
    config = torch.compiler.config
    config.recompile_limit = max(config.recompile_limit, 8 * blocks)
    config.accumulated_recompile_limit = max(config.accumulated_recompile_limit, config.recompile_limit)


def report_compilations(begins: Callable[[], None], ends: Callable[[], None]) -> None:
    """Have `begins` and `ends` called around each compilation of torch.compile, from now on.

    PyTorch's callbacks leave out what a compilation does before and after it: looking for the reason of compiling
    again, collecting garbage, and recording numbers about itself, which took 8 ms of a CPU beside the 208 ms of a small
    function. PyTorch does that, and the compilation, within a context that collects these numbers. Where there is such
    a context, its begin and end are reported, too, so that calls are nested (`host_work.CallTimer`).

    Nothing is reported where this PyTorch has no callbacks for that, or has not imported torch._dynamo: a script that
    compiles, or uses an optimizer, has.
    """
    dynamo = sys.modules.get("torch._dynamo")
    handler = getattr(dynamo, "callback_handler", None)
    if handler is not None:
        handler.register_start_callback(lambda *_: begins())
        handler.register_end_callback(lambda *_: ends())
    context = getattr(sys.modules.get("torch._dynamo.metrics_context"), "MetricsContext", None)
    if context is not None:
        _report_context(context, begins, ends)


def _report_context(context: Any, begins: Callable[[], None], ends: Callable[[], None]) -> None:
    """Have `begins` called before each enter of a class of context managers, and `ends` after each exit."""
    plain_enter, plain_exit = context.__enter__, context.__exit__

    def enter(manager: Any) -> Any:
        begins()
        return plain_enter(manager)

    def leave(manager: Any, *error: Any) -> Any:
        try:
            return plain_exit(manager, *error)
        finally:
            ends()

    context.__enter__, context.__exit__ = enter, leave


def has_compiled() -> bool:
    """Return True if torch.compile has compiled, or tried to compile, anything in this process."""
    dynamo = sys.modules.get("torch._dynamo.utils")  # imported only by torch.compile
    # With fullgraph=True, Dynamo counts nothing under "frames", only under "stats".
    return dynamo is not None and bool(dynamo.counters["frames"] or dynamo.counters["stats"])


def graph_breaks() -> int | None:
    """Return how often torch.compile had to leave a graph while it compiled; None if it compiled nothing."""
    if not has_compiled():
        return None
    reasons: dict[str, int] = sys.modules["torch._dynamo.utils"].counters["graph_break"]
    return sum(reasons.values())
