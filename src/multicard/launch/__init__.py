"""Starting jobs: command lines, environment, time limits, nodes, the run directory and the outcome."""
