"""What a job printed is in its log; the export of a report keeps the start and the end of it."""

import sqlite3
from contextlib import closing
from pathlib import Path

from multicard.profilers.nsys import _scrub


def test_the_output_of_a_job_is_cut_to_its_start_and_end_and_nothing_else_is(tmp_path: Path) -> None:
    database = tmp_path / "report.sqlite"
    output, kernel = "first line\n" + "x" * 1_000_000 + "\nlast line", "kernel" * 10_000
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT)")
        connection.execute("CREATE TABLE ProcessStreams (globalPid INTEGER, filenameId INTEGER, contentId INTEGER)")
        connection.executemany("INSERT INTO StringIds VALUES (?, ?)", [(1, "stdout"), (2, output), (3, kernel)])
        connection.execute("INSERT INTO ProcessStreams VALUES (7, 1, 2)")
        connection.commit()
    _scrub(database)
    with closing(sqlite3.connect(database)) as connection:
        kept = dict(connection.execute("SELECT id, value FROM StringIds"))
    assert (kept[1], kept[3]) == ("stdout", kernel)
    lines = kept[2].splitlines()
    assert (lines[0], lines[-1]) == ("first line", "last line")
    [said] = [line for line in lines if "left out" in line]
    left_out = len(output) - sum(len(part) for part in kept[2].split(f"\n{said}\n"))
    assert said == f"({left_out} characters left out, see log.txt)"
    assert database.stat().st_size < 200_000
