"""Traces of any profiler become the same activity tables.

A reader (`nsys_sqlite`, `kineto`) opens one file as a `Trace`, which yields the events as they were recorded, in
batches; `tables` turns the traces of a capture into the activity tables. Readers and tables share only `model`, so a
new format needs a reader only.

A kernel goes this way from its row in a file to a sentence about the step. `nsys_sqlite` yields it in a `Batch` of
`model`. `captured_events` collects it, with what else ran on its device. `device_times` forms the unions of these
intervals, and `timeline` a row per device and step. Then `analysis.runs.per_run.trace_shares` sums the rows of a run,
`analysis.runs.breakdown` divides the run's step, and `analysis.bottlenecks.bottlenecks` puts the result in words.
"""
