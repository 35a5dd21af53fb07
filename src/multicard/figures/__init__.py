"""Figures: they draw what the analysis computed."""
