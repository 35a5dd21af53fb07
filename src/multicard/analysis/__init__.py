"""Analysis of the records and traces of runs: measures, scaling, breakdowns, comparisons, recommendations."""
