"""Limits of a machine, measured: how fast it can compute, move data, communicate and load at most."""
