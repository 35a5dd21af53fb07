"""Traces of any profiler become the same activity tables.

The seam: a reader (`nsys_sqlite`, `kineto`) opens one file as a `Trace`, which gives the events as they were recorded,
in batches; `tables` turns the traces of a capture into the activity tables, and neither knows the other's side. A new
format needs a reader only.
"""
