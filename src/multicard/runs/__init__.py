"""A run as it is kept: the typed record in run.json, and the one function that reads it."""
