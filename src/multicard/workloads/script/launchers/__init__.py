"""The launchers, one module each."""
