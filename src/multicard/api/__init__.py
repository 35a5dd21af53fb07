"""Traces and results as tables and figures, for notebooks and the command line."""
