"""The strategies, a module each: `multicard.workloads.vision.strategy` says what an entry is."""
