"""Profilers: each wraps a job, or records inside its ranks, and leaves files from which activity tables are made."""

from collections.abc import Mapping

from multicard.core.entries import by_name
from multicard.profilers import kineto, none, nsys
from multicard.profilers.interface import Profiler

# `profiler: auto` tries the profilers in this order.
PROFILERS: Mapping[str, Profiler] = by_name(
    nsys.PROFILER,
    kineto.PROFILER,
    none.PROFILER,
)
