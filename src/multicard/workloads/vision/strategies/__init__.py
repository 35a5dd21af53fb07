"""The strategies, a module each; `multicard.workloads.vision.strategy` has the interface."""
