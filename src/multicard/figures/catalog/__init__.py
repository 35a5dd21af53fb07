"""The catalog of figures: a module per family, whose `FIGURES` say what each asks, how it is read and who draws it."""
