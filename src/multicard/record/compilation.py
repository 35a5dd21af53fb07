"""Detect torch.compile, and raise the limit on how often it compiles."""

import sys

import torch


def allow_compilations(blocks: int) -> None:
    """Let torch.compile compile a function that runs for each of some blocks as often for each as it would for one.

    Dynamo compiles a function once for each block that it does not trace together with the others, and by default
    leaves all after the eighth uncompiled.
    """
    config = torch.compiler.config
    config.recompile_limit = max(config.recompile_limit, 8 * blocks)
    config.accumulated_recompile_limit = max(config.accumulated_recompile_limit, config.recompile_limit)


def has_compiled() -> bool:
    """Return whether torch.compile has compiled, or tried to compile, anything in this process."""
    dynamo = sys.modules.get("torch._dynamo.utils")  # not imported where nothing was compiled
    # With fullgraph=True it counts no frames.
    return dynamo is not None and bool(dynamo.counters["frames"] or dynamo.counters["stats"])
