"""Say what holds each configuration back, what to try, and which is best for each goal."""

import argparse
from pathlib import Path

from multicard.analysis.evidence import read_evidence
from multicard.analysis.recommend import as_markdown
from multicard.errors import reported
from multicard.files import whole

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("scenarios", nargs="*", help="names of the scenarios to read")
parser.add_argument("--results", type=Path, required=True, help="results folder")
parser.add_argument("--out", type=Path, required=True, help="Markdown file to write")
arguments = parser.parse_args()
with reported():
    text = as_markdown(read_evidence(arguments.results, arguments.scenarios))
with whole(arguments.out) as temporary:
    temporary.write_text(text, encoding="utf-8")
