"""Traces of any profiler become the same activity tables.

A reader (`nsys_sqlite`, `kineto`) opens one file as a `Trace`, which yields the events as they were recorded, in
batches; `tables` turns the traces of a capture into the activity tables. Readers and tables share only `model`, so a
new format needs a reader only.

A kernel goes this way from its row in a file to a sentence about the step. `nsys_sqlite` yields it in a `Batch` of
`model`. `captured_events` collects it, with what else ran on its device. `device_times` forms the unions of these
intervals, and `timeline` a row per device and step. Then `results.per_run.trace_shares` sums the rows of a run by
the parts of `results.device_time`, `results.breakdown` divides the run's step, and
`answers.bottlenecks.bottlenecks` puts the result in words.

The wait for other ranks inside a collective goes another way from `captured_events` to `trace_shares`: `rank_matching`
finds the calls of all ranks that belong together, `matched_calls` has the wait of each rank in them, and `stragglers`
makes a row per rank.
"""
