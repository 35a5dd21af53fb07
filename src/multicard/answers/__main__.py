"""Print the page about measures.csv: `python -m multicard.answers > docs/measures.md`."""

from multicard.answers.measures_page import page

print(page(), end="")
