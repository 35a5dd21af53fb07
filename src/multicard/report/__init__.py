"""The report: one page that holds all an experiment found, and fetches nothing."""
