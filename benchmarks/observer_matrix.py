"""Run the table of observed scripts by other interpreters, and print as a table of Markdown what passed.

    python benchmarks/observer_matrix.py --python OLD/bin/python --python NEW/bin/python

Each interpreter is one of a user: Python 3.10 or newer with torch, torchvision, lightning, transformers and accelerate,
but without multicard, which runs by the interpreter of this program. Scripts and expected values are those of
`tests/script`: steps, windows, samples and phases of every rank as counted by hand; of the scripts in `COMPARED` there
also the losses, digit by digit, as without the observer. Scripts of others take part if `MULTICARD_SCRIPTS` is set.

The output of pytest goes to standard error. The exit code is 1 if a script failed.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
TESTS = (
    "tests/script/test_frameworks.py::test_every_step_of_every_rank_is_seen_and_the_losses_stay",
    "tests/script/test_scripts_of_others.py",
)
LEFT_OUT = "deepspeed"  # it runs by an environment of its own (envs/install-deepspeed.sh)
PACKAGES = ("torch", "torchvision", "lightning", "transformers", "accelerate")
PRINT_VERSIONS = (
    "import importlib.metadata as m, json, platform, sys; "
    "print(json.dumps({'Python': platform.python_version(), **{name: m.version(name) for name in sys.argv[1:]}}))"
)


class Column(NamedTuple):
    """What one interpreter made of the scripts."""

    versions: dict[str, str]
    outcomes: dict[str, str]  # "passed", "failed" or "skipped" by script


def versions_of(python: str) -> dict[str, str]:
    """Return the versions of an interpreter and of the packages that the scripts import."""
    command = [python, "-c", PRINT_VERSIONS, *PACKAGES]
    found: dict[str, str] = json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)
    return found


def outcomes_of(python: str, processes: int) -> dict[str, str]:
    """Run the tests of all scripts by an interpreter, and return the outcomes by script."""
    with tempfile.TemporaryDirectory(prefix="multicard-matrix-") as folder:
        results = Path(folder) / "results.xml"
        command = [sys.executable, "-m", "pytest", "--quiet", f"--numprocesses={processes}", f"--junitxml={results}"]
        subprocess.run(
            [*command, f"--basetemp={folder}/runs", "-k", f"not {LEFT_OUT}", *TESTS],
            cwd=ROOT,
            env=os.environ | {"MULTICARD_USER_PYTHON": python, "OMP_NUM_THREADS": "1"},
            stdout=sys.stderr,
            check=False,
        )
        cases = ET.parse(results).getroot().iter("testcase")
        return {script_of(case.attrib["name"]): outcome_of(case) for case in cases}


def script_of(test: str) -> str:
    """Return the script that a test runs.

    >>> script_of("test_every_step_is_seen[DDP, torchrun]"), script_of("test_imagenet_of_pytorchs_examples")
    ('DDP, torchrun', 'imagenet of pytorchs examples')
    """
    name, _, script = test.removesuffix("]").partition("[")
    return script or name.removeprefix("test_").replace("_", " ")


def outcome_of(case: ET.Element) -> str:
    """Return what a test case of JUnit's format ended with."""
    if case.find("skipped") is not None:
        return "skipped"
    return "passed" if case.find("failure") is None and case.find("error") is None else "failed"


def table(columns: list[Column]) -> str:
    """Return a table of Markdown with a row for each package and each script, and a column for each interpreter."""
    rows = [[package, *(column.versions[package] for column in columns)] for package in PACKAGES[1:]]
    scripts = sorted({script for column in columns for script in column.outcomes})
    rows += [[script, *(column.outcomes.get(script, "") for column in columns)] for script in scripts]
    head = ["", *(f"torch {column.versions['torch']}, Python {column.versions['Python']}" for column in columns)]
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    """Run all scripts by all interpreters that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", action="append", required=True, help="an interpreter; may be given several times")
    parser.add_argument("--processes", type=int, default=2, help="tests at the same time")
    arguments = parser.parse_args()
    columns = [Column(versions_of(python), outcomes_of(python, arguments.processes)) for python in arguments.python]
    print(table(columns))
    if any("failed" in column.outcomes.values() for column in columns):
        sys.exit(1)


if __name__ == "__main__":
    main()
