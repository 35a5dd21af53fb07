"""What was measured: the files of runs, the tables of scenarios, and `Results`, by which all questions are answered."""
