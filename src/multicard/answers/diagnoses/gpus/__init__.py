"""Causes on GPUs, by traces and by their memory."""
