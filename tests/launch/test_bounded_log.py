"""The log of a job that prints without end keeps its beginning and its end, and says how much it left out."""

import re
from pathlib import Path

import pytest

from multicard.launch.bounded_log import BoundedLog


def small_log(path: Path) -> BoundedLog:
    """A log with bounds of kilobytes in place of megabytes; it takes 5000 bytes at most."""
    return BoundedLog(path, head_bytes=1000, tail_bytes=2000)


def test_a_log_within_the_bound_is_whole(tmp_path: Path) -> None:
    with small_log(tmp_path / "log.txt") as log:
        for _ in range(50):
            log.write(b"x" * 99 + b"\n")
    assert (tmp_path / "log.txt").read_bytes() == (b"x" * 99 + b"\n") * 50


@pytest.mark.parametrize("count", [501, 5000])
def test_of_a_long_log_the_beginning_and_the_end_stay_at_all_times(count: int, tmp_path: Path) -> None:
    path, lines = tmp_path / "log.txt", [f"line {number:4}" for number in range(count)]  # of ten bytes each
    with small_log(path) as log:
        for number, line in enumerate(lines, 1):
            log.write(f"{line}\n".encode())
            if number % 97 == 0:  # as someone who follows it
                assert path.stat().st_size <= 5000 + 100
                assert path.read_text().splitlines()[-1] == line
    text = path.read_text()
    [missing] = re.findall(r"^\[multicard left out (\d+) bytes of output here\]$", text, re.M)
    head, tail = (part.strip().splitlines() for part in re.split(r"\n\[multicard .*\]\n", text))
    assert head == lines[: len(head)] and 100 <= len(head) <= 101
    assert tail == lines[-len(tail) :] and len(tail) >= 199
    assert int(missing) == 10 * (count - len(head) - len(tail))


def test_output_without_lines_is_bounded_too(tmp_path: Path) -> None:
    with small_log(tmp_path / "log.txt") as log:
        for number in range(30_000):
            log.write(b"%d" % (number % 10))
    content = (tmp_path / "log.txt").read_bytes()
    assert len(content) <= 5000 + 100
    assert content.startswith(b"0123456789" * 90) and content.endswith(b"0123456789" * 190)
