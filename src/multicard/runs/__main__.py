"""Print the page about run.json: `python -m multicard.runs > docs/run-record.md`."""

from multicard.runs.page import page

print(page(), end="")
