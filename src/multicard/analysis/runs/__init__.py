"""The analysis of one run: its measures, notices about what may be wrong with them, and the parts of its step."""
