"""Change a module in many small ways, and list the changes that none of the named tests notices.

    pip install mutmut
    python benchmarks/mutation.py src/multicard/stats/corrections.py tests/answers/test_pooling.py

mutmut changes the functions of a copy of the project, one place at a time, and runs the tests that reach the function.
What survives shows a missing test, or a change that makes no difference. The doctests of the module count as tests;
slow and rare tests do not. Leave out tests that end processes: a mutant may end others.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
# What tests read beside tests and sources; mutmut runs them in a folder that holds nothing else.
ALSO_READ = ["Snakefile", "benchmarks", "config", "docs", "envs", "profiles", "resources", "workflow"]
# Programs that tests start import the mutated package from here. Its own folder, src, mutmut takes from their path.
FOR_PROGRAMS = "for_programs"
CONFIGURATION = """

[tool.mutmut]
source_paths = ["src"]
only_mutate = ["{module}"]
also_copy = {also_read}
pytest_add_cli_args = ["-p", "no:xdist", "-p", "no:cacheprovider", "--doctest-modules", "-m", "not slow and not rare"]
pytest_add_cli_args_test_selection = {tests}
"""


def copy_project(folder: Path) -> None:
    """Copy the files that git tracks, as they are in the working tree."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    for name in filter(None, listed.stdout.split("\0")):
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, target, follow_symlinks=False)
    (folder / FOR_PROGRAMS).mkdir()
    (folder / FOR_PROGRAMS / "multicard").symlink_to(folder / "mutants" / "src" / "multicard")


def mutmut(folder: Path, *arguments: str) -> str:
    """Run a command of mutmut in a copy of the project, and return what it prints."""
    command = [sys.executable, "-m", "mutmut", *arguments]
    environment = os.environ | {"PYTHONPATH": str(folder / FOR_PROGRAMS)}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} failed:\n{done.stdout[-5000:]}{done.stderr[-5000:]}")
    return done.stdout


def main() -> None:
    """Mutate one module and print its survivors as differences, then how many mutants had which outcome."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("module", help="path of the module, from the root of the project")
    parser.add_argument("tests", nargs="+", help="files of tests, from the root of the project")
    parser.add_argument("--processes", type=int, default=2)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="multicard-mutation-") as temporary:
        folder = Path(temporary)
        copy_project(folder)
        tests = [*arguments.tests, arguments.module]
        with (folder / "pyproject.toml").open("a") as project:
            project.write(CONFIGURATION.format(module=arguments.module, also_read=ALSO_READ, tests=tests))
        mutmut(folder, "run", "--max-children", str(arguments.processes))
        outcomes: Counter[str] = Counter()
        for line in mutmut(folder, "results", "--all", "true").splitlines():
            mutant, _, outcome = line.strip().rpartition(": ")
            outcomes[outcome] += 1
            if outcome != "killed":
                print(f"{outcome}: {mutmut(folder, 'show', mutant)}")
        print(f"{arguments.module}: {outcomes.total()} mutants, {dict(outcomes)}")


if __name__ == "__main__":
    main()
