"""The search for the best configuration of a scenario without all of its runs."""
