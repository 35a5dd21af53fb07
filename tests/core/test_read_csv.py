"""CSV files are read, or what is wrong with one is said in one line."""

import io
from pathlib import Path

import pytest

from multicard.core.errors import UserError
from multicard.core.tables import parse_csv, read_csv


def test_a_table_has_the_columns_of_the_first_line(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("rank,time_s\n0,1.5\n1,\n")
    table = read_csv(path, needed=["rank", "time_s"])
    assert table["rank"].tolist() == [0, 1]
    assert table["time_s"].isna().tolist() == [False, True]
    assert read_csv(path, dtype=str, keep_default_na=False)["time_s"].tolist() == ["1.5", ""]


def test_a_header_alone_is_a_table_without_rows(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("rank,time_s\n")
    assert read_csv(path, needed=["rank"]).empty


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (None, "missing"),
        (b"", "empty, expected a header"),
        (b"\n\n", "empty, expected a header"),
        (b"rank\n\xff\n", "does not parse as CSV: "),
        (b'rank\n"0\n', "does not parse as CSV: "),
        (b"rank,time_s\n0,1\n0,1,2\n", "does not parse as CSV: "),
        # Each value would stand in the column before its own.
        (b"rank,time_s\n0,1,2\n0,1,2\n", "does not parse as CSV: found more columns than the 2 of the first line"),
        (b"time_s\n1\n", "found no column rank"),
    ],
)
def test_a_fault_is_one_line_that_begins_with_the_file(tmp_path: Path, content: bytes | None, fault: str) -> None:
    path = tmp_path / "a.csv"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError) as error:
        read_csv(path, needed=["rank"])
    [line] = str(error.value).splitlines()
    assert line.startswith(f"{path}: {fault}")


def test_what_is_no_file_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read: Is a directory"):
        read_csv(tmp_path)


def test_the_expected_form_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("rank\n0.5\n")
    with pytest.raises(UserError, match="does not parse as CSV of whole numbers: "):
        read_csv(path, form="CSV of whole numbers", dtype="int64")


def test_text_is_parsed_like_a_file() -> None:
    assert parse_csv(io.StringIO("rank\n3\n"))["rank"].tolist() == [3]
    with pytest.raises(ValueError, match="more columns than the 1 of"):
        parse_csv(io.StringIO("rank\n3,4\n"))
