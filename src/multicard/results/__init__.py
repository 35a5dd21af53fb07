"""Measurements: the files of each run, the tables of each scenario, and `Results`, the class that analyses read."""
