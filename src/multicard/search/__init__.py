"""Search for the best configuration of a scenario by some of its runs."""
