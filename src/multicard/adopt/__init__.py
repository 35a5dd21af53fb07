"""Runs of traces that exist already: what a table states of them, what they show, and the configuration of them."""
