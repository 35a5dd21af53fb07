"""Write the embedded text sets: `python resources/text/make.py`, or `--out FOLDER` to write them elsewhere.

A sample follows from its number: templates and lists of different lengths turn past one another, so that no two samples
are the same. Nothing is random, and whatever can be wrong (sums, dates, conversions) is computed.
"""

import argparse
import json
from pathlib import Path

from articles import articles
from talks import chats, summaries
from tasks import grammar, instructions, preferences

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--out", type=Path, default=Path(__file__).parent, help="folder to write them to")
out = parser.parse_args().out
for make in (articles, chats, grammar, instructions, preferences, summaries):
    text = "".join(json.dumps(sample, ensure_ascii=False) + "\n" for sample in make())
    (out / f"{make.__name__}.jsonl").write_text(text, encoding="utf-8", newline="\n")
