"""Causes in the work of single ranks, for which the others wait."""
