"""Where the time of the tests goes: `make test PYTEST_ADDOPTS=--durations=0 | python benchmarks/durations.py`.

Prints seconds per file, of all workers together, with its set-ups and what it shares, from the longest.
"""

import re
import sys
from collections import Counter

LINE = re.compile(r"\s*([\d.]+)s (?:call|setup|teardown)\s+(?:tests/)?(\S+?)::")


def main() -> None:
    """Read what pytest says and print a row per file of a second or more, and their sum."""
    seconds: Counter[str] = Counter()
    for line in sys.stdin:
        if found := LINE.match(line):
            seconds[found[2]] += float(found[1])
    for name, spent in seconds.most_common():
        if spent >= 1:
            print(f"| {name} | {spent:.0f} |")
    print(f"| all | {seconds.total():.0f} |")


if __name__ == "__main__":
    main()
