"""Planning: the model of configuration files, their scenarios, and the runs into which scenarios expand."""
