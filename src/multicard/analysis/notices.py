"""What a reader must know of a completed run before believing its numbers, by its measures."""

from collections.abc import Callable, Mapping
from typing import Any

import pandas as pd

from multicard.core.units import percent

Notice = Callable[[Mapping[str, Any]], str | None]

DISTURBED = "disturbed"
NOT_STATIONARY = "not stationary"
WINDOW_DIFFERS = "profiled window unlike the measured one"


def disturbance_notice(values: Mapping[str, Any]) -> str | None:
    """What disturbed or throttled a run, see `multicard.analysis.conditions`; None where that is nothing or unknown."""
    found = values.get("disturbance")
    return None if pd.isna(found) else found


def drift_notice(values: Mapping[str, Any]) -> str | None:
    """How the step time of a run that was not stationary changed; None of one that was, or of which that is unknown."""
    if not _is(values, "stationary", False):
        return None
    return f"step time {percent(values['drift'], signed=True)} from the first to the second half of the measured steps"


def window_notice(values: Mapping[str, Any]) -> str | None:
    """How the profiled window of a run is unlike the measured one; None where it is not."""
    if not _is(values, "windows_differ", True):
        return None
    parts = []
    shares = [values.get(name) for name in ("profiled_data_share", "data_share")]
    if not any(pd.isna(share) for share in shares):
        parts.append("data share {} instead of {}".format(*map(percent, shares)))
    overhead = values.get("profiler_overhead")
    if not pd.isna(overhead):
        parts.append(f"steps {percent(abs(overhead))} {'longer' if overhead > 0 else 'shorter'}")
    return ", ".join(parts)


# By what is the matter.
NOTICES: dict[str, Notice] = {
    DISTURBED: disturbance_notice,
    NOT_STATIONARY: drift_notice,
    WINDOW_DIFFERS: window_notice,
}


def notices(values: Mapping[str, Any]) -> list[str]:
    """All notices on a run, with what is the matter; none without measures."""
    return [f"{what}: {how}" for what, notice in NOTICES.items() if (how := notice(values)) is not None]


def _is(values: Mapping[str, Any], name: str, expected: bool) -> bool:
    """Whether a measure is known and has a value; tables that were read have NumPy's values."""
    found = values.get(name)
    return not pd.isna(found) and bool(found) is expected
