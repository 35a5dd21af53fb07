"""The strategies, a module each; `multicard.programs.vision.strategy` has the interface."""

from collections.abc import Mapping

from multicard.core.entries import by_name
from multicard.programs.vision.strategies import ddp, ddp_ds, dp, fsdp, single
from multicard.programs.vision.strategy import Strategy

STRATEGIES: Mapping[str, Strategy] = by_name(
    single.STRATEGY,
    dp.STRATEGY,
    ddp.STRATEGY,
    ddp_ds.STRATEGY,
    fsdp.STRATEGY,
)
