"""The report: one self-contained page with all results of an experiment."""
