"""Answers from results: how a job scales, what takes a step's time, which configuration to choose, what changed."""
