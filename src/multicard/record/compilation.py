"""Detect torch.compile, and raise the limit on how often it compiles."""

import sys

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


def has_compiled() -> bool:
    """Return True if torch.compile has compiled, or tried to compile, anything in this process."""
    dynamo = sys.modules.get("torch._dynamo.utils")  # imported only by torch.compile
    # With fullgraph=True, Dynamo counts nothing under "frames", only under "stats".
    return dynamo is not None and bool(dynamo.counters["frames"] or dynamo.counters["stats"])
