"""Causes in what the host does in a step, or in every n-th one."""
