"""Measurements: files and measures of each run, tables of each scenario, and `Results`, which answers are made from."""
