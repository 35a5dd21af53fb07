"""Causes in loading data, within a pass and between passes."""
