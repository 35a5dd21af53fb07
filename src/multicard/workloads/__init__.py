"""Workloads: the kinds of jobs that multicard runs."""
