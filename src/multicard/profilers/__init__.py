"""Profilers: each wraps a job or records inside it, and leaves files that become activity tables."""

from collections.abc import Mapping

from multicard.core.entries import by_name
from multicard.profilers import kineto, none, nsys
from multicard.profilers.interface import Profiler

# `profiler: auto` tries them in this order.
PROFILERS: Mapping[str, Profiler] = by_name(
    nsys.PROFILER,
    kineto.PROFILER,
    none.PROFILER,
)
