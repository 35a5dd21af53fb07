"""The techniques, a module each: `multicard.workloads.llm.technique` says what an entry is."""
