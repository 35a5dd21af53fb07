"""Causes of lost time that the record of a run names, each with its evidence, its remedy and what that would gain."""
