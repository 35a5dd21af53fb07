"""What every package uses: errors, files, text, units, external programs, the layout of a run directory."""
