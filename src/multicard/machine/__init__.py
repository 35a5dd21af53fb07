"""Whether a machine is ready for an experiment (doctor), and what it can do at most, measured (limits)."""
