"""Estimates over repeated measurements: intervals, tests, and corrections for testing several of them together.

`pool` has the model and makes the estimates. It builds on `samples` (values and blocks), `scatter` (standard errors),
`blocks` and `variances` (the estimates from which standard errors are computed), and `student` (the t distribution).

`interval` has the class of an estimate, and decides whether an estimate shows a difference. `corrections` adjusts
estimates that are shown together. `selection` adjusts the estimate of a configuration that was chosen by its own value.
"""
