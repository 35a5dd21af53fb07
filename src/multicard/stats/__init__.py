"""Intervals, pooled estimates and tests, each defined once. No module here has heard of a run."""
