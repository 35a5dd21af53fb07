"""What notebooks and the command line call: traces and results as tables and figures."""
