"""Modules that all packages use: errors, files, text, units, external programs, the layout of a run directory."""
