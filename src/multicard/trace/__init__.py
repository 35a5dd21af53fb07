"""Traces of any profiler become the same activity tables.

The seam: a reader (`nsys_sqlite`, `kineto`) turns one file into a `Trace`, the events as they were recorded; `tables`
turns a `Trace` into the activity tables, and neither knows the other's side. A new format needs a reader only.
"""
