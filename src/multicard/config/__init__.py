"""From YAML to a plan: the model of configuration files, their scenarios, and the runs into which scenarios expand."""
