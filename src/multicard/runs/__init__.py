"""A run as it is stored: the types of run.json and rank.json, its parameters, and the words for its machine."""
