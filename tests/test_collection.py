"""The tests' ids depend on the sources alone, so that every worker of pytest-xdist collects the same tests."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import ROOT

ANOTHER_CLOCK = """
import time

_real, _real_ns = time.time, time.time_ns
time.time = lambda: _real() + 3600
time.time_ns = lambda: _real_ns() + 3600 * 10**9
"""


def collected(folder: Path, seed: str, *options: str) -> list[str]:
    """The ids that a fresh pytest collects, in their order, with the modules of a folder."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    found = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *options],
        cwd=ROOT, env=kept | {"PYTHONHASHSEED": seed, "PYTHONPATH": f"{folder}:{kept.get('PYTHONPATH', '')}"},
        capture_output=True, text=True, check=True, timeout=600,
    )  # fmt: skip
    return [line for line in found.stdout.splitlines() if "::" in line]


@pytest.mark.rare
def test_ids_depend_neither_on_the_time_nor_on_the_hash_seed(tmp_path: Path) -> None:
    (tmp_path / "another_clock.py").write_text(ANOTHER_CLOCK)
    first = collected(tmp_path, "1")
    assert len(first) > 1000 and collected(tmp_path, "2", "-p", "another_clock") == first
