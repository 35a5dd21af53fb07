"""Whether a machine has what an experiment needs, and what to do where it has not."""
