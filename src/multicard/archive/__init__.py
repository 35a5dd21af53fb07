"""Recorded results: an experiment's runs in one file, without what names people and machines, and back."""
