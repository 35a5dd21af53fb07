"""Show that a change of names and structure changed no number: keep every number before it, compare after it.

    python benchmarks/unchanged.py keep BEFORE       # at the commit before
    python benchmarks/unchanged.py keep AFTER        # at the commit after
    python benchmarks/unchanged.py compare BEFORE AFTER

Kept are the tables of `multicard analyze --json` of every trace in the folder that MULTICARD_TRACES names, and the
tables, figures' numbers and claims of seeded synthetic runs of the papers' matrix and of the tour.
Names that changed on purpose are in `renamed.csv` beside this file, and of sentences only the numbers count; everything
else must be equal, byte for byte.
"""

import argparse
import csv
import os
import re
import subprocess
import sys
import tempfile
from itertools import zip_longest
from pathlib import Path

import yaml
from matrix import PAPERS
from synthetic_runs import write_runs

ROOT = Path(__file__).parents[1]
CLUSTER = {"cpus_per_node": 64, "gpus_per_node": 4}
PROSE = (
    "reason",
    "finding",
    "claim",
    "conditions",
    "other_evidence",
    "our_choice",
    "can_be_judged",
    "refuted_if",
    "not_judged_because",
    "statement",
    "comparison",
    "configuration",
    "test",
    "claim_text",
)  # columns of sentences


def keep(out: Path) -> None:
    """Write every number into the empty folder `out`."""
    out.mkdir(parents=True)
    multicard = [str(Path(sys.executable).with_name("multicard"))]
    for trace in sorted(Path(os.environ["MULTICARD_TRACES"]).glob("*/*.*")):
        done = subprocess.run(
            [*multicard, "analyze", str(trace), "--json"], capture_output=True, text=True, check=False
        )
        said = done.stdout or done.stderr.replace(str(trace.parent), "")
        (out / f"{trace.name}.txt").write_text(said)
    for name, config in {"vision": PAPERS[0], "llm": PAPERS[1], "tour": ROOT / "config/tour.yaml"}.items():
        with tempfile.TemporaryDirectory() as scratch:
            _draw(config, Path(scratch), out / name, multicard)


def _draw(config: Path, scratch: Path, out: Path, multicard: list[str]) -> None:
    """Draw synthetic runs of a configuration; keep the numbers."""
    from multicard.experiment.load import check

    described = yaml.safe_load(config.read_text()) | {"results": "results", "cluster": CLUSTER}
    for model in described.get("models", {}).values():  # weights of a real model are not at hand
        model |= {"architecture": "tiny", "folder": None}
    (scratch / "config.yaml").write_text(yaml.safe_dump(described, sort_keys=False))
    write_runs(check(described, str(config)), scratch / "results")
    command = [*multicard, "draw", "results", "--config", "config.yaml", "--out", "drawn"]
    subprocess.run(command, cwd=scratch, check=True)
    for path in sorted((scratch / "drawn").rglob("*.*")):
        if path.suffix == ".csv":
            target = out / path.relative_to(scratch / "drawn")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())


def compare(before: Path, after: Path) -> int:
    """Print what differs beyond the names that changed on purpose; return the number of files that do."""
    with (Path(__file__).with_name("renamed.csv")).open(newline="") as file:
        rules = list(csv.DictReader(file))
    names, words = ({row["old"]: row["new"] for row in rules if row["where"] == where} for where in ("file", "text"))
    old = {_renamed(path.relative_to(before).as_posix(), names): path for path in before.rglob("*.*")}
    new = {path.relative_to(after).as_posix(): path for path in after.rglob("*.*")}
    differing = sorted(old.keys() ^ new.keys())
    for name in differing:
        print(f"only {'before' if name in old else 'after'}: {name}")
    for name in sorted(old.keys() & new.keys()):
        if old[name].is_dir():
            continue
        a = _plain(_renamed(old[name].read_text(), words))
        b = _plain(new[name].read_text())
        if a != b:
            differing.append(name)
            lines = list(zip_longest(a, b, fillvalue=""))
            at = next(n for n, (x, y) in enumerate(lines) if x != y)
            print(f"{name}: line {at + 1}\n  - {lines[at][0][:300]}\n  + {lines[at][1][:300]}")
    print(f"{len(old)} files, {len(differing)} differ")
    return len(differing)


def _plain(text: str) -> list[str]:
    """Lines of a file; of a table's sentences only the numbers."""
    rows = list(csv.reader(text.splitlines()))
    prose = [at for at, column in enumerate(rows[0]) if column in PROSE] if rows else []
    if not prose:
        return text.splitlines()
    kept = [[" ".join(re.findall(r"[0-9.]+", v)) if at in prose else v for at, v in enumerate(row)] for row in rows]
    return [",".join(row) for row in kept]


def _renamed(text: str, renamed: dict[str, str]) -> str:
    pattern = rf"(?<![A-Za-z0-9_])({'|'.join(map(re.escape, sorted(renamed, key=len, reverse=True)))})(?![A-Za-z0-9_])"
    return re.sub(pattern, lambda found: renamed[found[0]], text)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("action", choices=["keep", "compare"])
    parser.add_argument("folders", type=Path, nargs="+")
    arguments = parser.parse_args()
    if arguments.action == "keep":
        keep(arguments.folders[0].absolute())
    else:
        sys.exit(bool(compare(*arguments.folders)))
