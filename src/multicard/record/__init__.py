"""The run directory: what is measured while a job runs, and what is written down of it."""
