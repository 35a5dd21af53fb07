"""The version of the driver is known without a package for it."""

from pathlib import Path

import pytest

from multicard.record.environment import driver


@pytest.mark.parametrize(
    ("line", "version"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023", "535.104.05"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build  (dvs@host)", "580.65.06"),
        ("something else", None),
        (None, None),
    ],
)
def test_the_driver_is_the_one_that_linux_shows(line: str | None, version: str | None, tmp_path: Path) -> None:
    if line:
        (tmp_path / "version").write_text(f"{line}\nGCC version:  gcc version 12.2.0 (Debian 12.2.0-14)\n")
    assert driver(tmp_path / "version") == version
