"""What torch.compile left uncompiled, which it says in a log only."""

import re
import sys
from typing import Any

import torch

LIMIT_HIT = re.compile(r"Dynamo recompile limit exceeded.*currently set to (\d+).*Limit type: (\w+)", re.DOTALL)


def allow_compilations(blocks: int) -> None:
    """Let torch.compile compile a function that runs for each of some blocks as often for each as it would for one.

    Dynamo compiles a function once for each block that it does not trace together with the others, and by default
    leaves all after the eighth uncompiled.
    """
    config = torch.compiler.config
    config.recompile_limit = max(config.recompile_limit, 8 * blocks)
    config.accumulated_recompile_limit = max(config.accumulated_recompile_limit, config.recompile_limit)


def has_compiled() -> bool:
    """Whether torch.compile has compiled, or tried to compile, anything in this process."""
    dynamo = sys.modules.get("torch._dynamo.utils")  # not imported where nothing was compiled
    # With fullgraph=True it counts no frames.
    return dynamo is not None and bool(dynamo.counters["frames"] or dynamo.counters["stats"])


def limits_hit() -> list[dict[str, Any]]:
    """Limits of torch.compile above which functions of this process ran uncompiled: `limit`, `value`, `functions`."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    if dynamo is None:
        return []
    # No public interface tells: Dynamo counts what it could not compile under the text of its explanation.
    hits = [(LIMIT_HIT.match(text), count) for text, count in dynamo.counters["unimplemented"].items()]
    return [{"limit": hit[2], "value": int(hit[1]), "functions": count} for hit, count in hits if hit]
