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


def collected(plugins: Path, *arguments: str, **environment: str) -> list[str]:
    """The ids that a fresh pytest collects, in their order."""
    found = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *arguments],
        cwd=ROOT, capture_output=True, text=True, check=True, timeout=600,
        env={name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        | {"PYTHONPATH": os.pathsep.join([str(plugins), *filter(None, [os.environ.get("PYTHONPATH")])])}
        | environment,
    )  # fmt: skip
    return [line for line in found.stdout.splitlines() if "::" in line]


@pytest.mark.slow
def test_ids_depend_neither_on_the_time_nor_on_the_hash_seed(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    (tmp_path / "another_clock.py").write_text(ANOTHER_CLOCK)
    chosen = ("keyword", "markexpr", "deselect", "ignore", "ignore_glob", "lf", "failedfirst", "newfirst", "stepwise")
    # What this session itself collected will do, if that is everything: it has a hash seed and a clock of its own.
    if request.config.args == ["tests"] and not any(request.config.getoption(name, None) for name in chosen):
        first = [item.nodeid for item in request.session.items]
    else:
        first = collected(tmp_path, PYTHONHASHSEED="1")
    second = collected(tmp_path, "-p", "another_clock", PYTHONHASHSEED="2")
    assert len(first) > 1000
    assert first == second
