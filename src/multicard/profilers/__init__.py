"""Profilers: how each wraps a job, and what it leaves."""
