"""Causes at lines of the user's code, by samples of the stack."""
