"""Causes in what ranks exchange, and by which back end."""
