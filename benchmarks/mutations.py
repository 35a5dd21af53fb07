"""Undo what the code promises, one thing at a time, and see that a test fails: `python benchmarks/mutations.py`.

Each file in tests/mutations lists mutations: a `file` of src/multicard, the text in it to `replace`, which is there
once, what to replace it `with`, and the `test` that has to fail. The sources are changed in a copy.
"""

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]
LISTS = ROOT / "tests" / "mutations"


def main() -> None:
    """Print a line for each mutation; exit with 1 where a test passes in spite of one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lists", nargs="*", help="names of lists, without suffix (default: all)")
    names = parser.parse_args().lists
    files = [LISTS / f"{name}.yaml" for name in names] or sorted(LISTS.glob("*.yaml"))
    survived = 0
    for path in files:
        for mutation in yaml.safe_load(path.read_text(encoding="utf-8")):
            told = judge(**mutation)
            survived += told != "failed"
            print(f"{told:9} {path.stem}: {mutation['file']}: {mutation['with']!r}: {mutation['test']}", flush=True)
    sys.exit(survived > 0)


def judge(file: str, replace: str, test: str, **other: str) -> str:
    """How a test ends on the mutated sources: `failed`, as it has to, `passed`, or `no test`."""
    with tempfile.TemporaryDirectory() as name:
        sources = Path(name) / "src"
        shutil.copytree(ROOT / "src", sources, ignore=shutil.ignore_patterns("__pycache__"))
        path = sources / "multicard" / file
        text = path.read_text(encoding="utf-8")
        if text.count(replace) != 1:
            return f"{text.count(replace)} places"
        path.write_text(text.replace(replace, other["with"]), encoding="utf-8")
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *shlex.split(test)],
            cwd=ROOT, env=os.environ | {"PYTHONPATH": str(sources)}, capture_output=True, check=False,
        )  # fmt: skip
    return {0: "passed", 1: "failed"}.get(done.returncode, "no test")


if __name__ == "__main__":
    main()
