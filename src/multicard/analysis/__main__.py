"""Print the page about measures.csv: `python -m multicard.analysis > docs/measures.md`."""

from multicard.analysis.measures_page import page

print(page(), end="")
