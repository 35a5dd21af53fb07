"""Pack an experiment's recorded runs into one file without names of people and machines, and unpack such a file."""
