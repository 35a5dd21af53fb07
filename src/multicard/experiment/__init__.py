"""What to run: the configuration model, scenarios and the runs they expand into."""
