"""Estimates over repeated measurements: intervals, tests, and corrections for testing several of them together."""
