"""Profilers: each wraps a job or records inside it, and leaves files that become activity tables."""

from multicard.core.registry import Registry
from multicard.profilers.interface import Profiler

PROFILERS: Registry[Profiler] = Registry("multicard.profilers", "PROFILER")
