"""Traces of any profiler become the same activity tables.

A reader (`nsys_sqlite`, `kineto`) opens one file as a `Trace`, which yields the events as they were recorded, in
batches; `tables` turns the traces of a capture into the activity tables. Readers and tables share only `model`, so a
new format needs a reader only.
"""
