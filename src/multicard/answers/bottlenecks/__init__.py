"""Where a step's time goes, and what to try."""
