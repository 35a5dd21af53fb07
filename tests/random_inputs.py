"""Tests of random inputs: some in the daily round, more in `make test-all`."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import pytest


def seeds(daily: int, rare: int = 0) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Run a test once for each `seed`: as one test of the first `daily` ones, and as a rare one of `rare` more."""
    ranges = [pytest.param(range(daily), id=f"{daily} seeds")]
    if rare:
        ranges.append(pytest.param(range(daily, daily + rare), id=f"{rare} more", marks=pytest.mark.rare))

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def run(among: range, **given: Any) -> None:
            for seed in among:
                try:
                    test(seed=seed, **given)
                except BaseException as error:
                    error.add_note(f"seed {seed}")
                    raise

        taken = inspect.signature(test).parameters
        own = inspect.Parameter("among", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        run.__signature__ = inspect.Signature([own, *(each for name, each in taken.items() if name != "seed")])
        return pytest.mark.parametrize("among", ranges)(run)

    return decorate
