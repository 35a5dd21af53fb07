"""Which configuration and how many devices to use."""
