"""Estimates over repeated measurements: intervals, tests, and corrections for testing several of them together.

`pool` has the model and the estimates. It builds on `samples` (values, blocks), `scatter` (standard errors), `blocks`
and `variances` (what these are estimated from), and `student` (the t distribution). `interval` has the estimate that is
returned, and its verdict; `corrections` and `selection` adjust several of them that are shown, or chosen, together.
"""
