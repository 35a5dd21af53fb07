"""The techniques, a module each; `multicard.workloads.llm.technique` has the interface."""
