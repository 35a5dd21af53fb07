"""What the records and traces of runs say: measures, scaling, breakdowns."""
