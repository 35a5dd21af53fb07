"""Make runs from traces that exist already: by what a table states about them, and by what the traces show."""
