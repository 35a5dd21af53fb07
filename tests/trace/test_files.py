"""Files are opened by their content, whatever their names; what is no trace is named as what it is."""

import gzip
import shutil
from pathlib import Path

import pytest

from multicard.core.errors import TraceError
from multicard.profilers.nsys import PROFILER
from multicard.trace.files import open_capture, open_trace
from multicard.trace.model import Trace
from synthetic import kineto_trace, nsys_export

REPORT = b"NVIDIA Tegra Profiler Report 2020@2@1@71"  # how reports of all versions begin


def starts(trace: Trace) -> list[int]:
    """Starts of the kernels, in nanoseconds; those of `synthetic` begin at 1 and 6 ms."""
    [batch] = [batch for part in trace.open("kernels", ("start",), ("device",)).parts for batch in part()]
    return batch.numbers["start"].tolist()


@pytest.mark.parametrize("name", ["trace.db", "trace", "trace.json", "trace.nsys-rep", "trace.sqlite"])
@pytest.mark.parametrize("content", ["sqlite", "json", "json.gz"])
def test_a_trace_is_opened_by_its_content(name: str, content: str, tmp_path: Path) -> None:
    made = tmp_path / f"made.{content}"
    nsys_export(made) if content == "sqlite" else kineto_trace(made)
    path = Path(shutil.copy(made, tmp_path / name))
    assert starts(open_trace(path, tmp_path / "scratch")) == [1_000_000, 6_000_000]


@pytest.mark.parametrize("name", ["report.nsys-rep", "report.qdrep", "report.bin"])
def test_reports_of_any_name_are_exported(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def export(file: Path, folder: Path) -> Path:
        asked.append(file)
        return nsys_export(folder / "report.sqlite")

    monkeypatch.setattr(PROFILER, "export", export)
    path = tmp_path / name
    path.write_bytes(REPORT + bytes(100))
    (tmp_path / "scratch").mkdir()
    assert starts(open_trace(path, tmp_path / "scratch")) == [1_000_000, 6_000_000]
    assert asked == [path]
    with pytest.raises(TraceError, match=r"expected \.nsys-rep, \.qdrep, \.sqlite, \.json or \.json\.gz"):
        open_trace(path)


def test_an_old_report_and_its_database_in_a_folder_count_once(tmp_path: Path) -> None:
    nsys_export(tmp_path / "report.sqlite")
    (tmp_path / "report.qdrep").write_bytes(REPORT)
    [trace] = open_capture([tmp_path], tmp_path)
    assert trace.name == "report"


@pytest.mark.parametrize("name", ["t.json", "t.json.gz", "t.sqlite", "t.nsys-rep", "t.qdrep", "t.txt"])
@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is empty"),
        (
            b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n",
            "a Git LFS pointer, not the file itself: git lfs pull",
        ),
    ],
    ids=["empty", "pointer"],
)
def test_an_empty_file_and_a_pointer_to_one_are_named(name: str, content: bytes, says: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(TraceError) as refused:
        open_trace(tmp_path / name, tmp_path)
    assert str(refused.value) == f"{tmp_path / name}: {says}"


@pytest.mark.parametrize(
    "content", [b" \n", gzip.compress(b"", mtime=0), gzip.compress(b" " * 10, mtime=0)], ids=["plain", "none", "blanks"]
)
def test_a_file_of_blanks_is_empty(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "t.json").write_bytes(content)
    with pytest.raises(TraceError, match=r"t\.json: is empty"):
        open_trace(tmp_path / "t.json")


def test_a_gzipped_database_is_named(tmp_path: Path) -> None:
    path = tmp_path / "t.sqlite.gz"
    path.write_bytes(gzip.compress(nsys_export(tmp_path / "t.sqlite").read_bytes()))
    with pytest.raises(TraceError, match="a gzipped SQLite database, expected JSON: gunzip it first"):
        open_trace(path)


def test_a_report_of_a_newer_nsys_is_said_how_to_export(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = (
        "Exportation error: Report was created in Nsight Systems version (2025.1.3.140-251335620677v0), newer than "
        "your current version (2023.4.4.54-234433681190v0).\nPlease update your Nsight Systems to the latest version."
    )
    program = tmp_path / "bin" / "nsys"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\ncat <<'END'\n{said}\nEND\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    report = tmp_path / "report.nsys-rep"
    report.write_bytes(REPORT)
    with pytest.raises(TraceError) as refused:
        open_trace(report, tmp_path)
    assert str(refused.value) == (
        "report.nsys-rep: written by nsys 2025.1.3.140, which is newer than the nsys on the PATH (2023.4.4.54): "
        "install nsys 2025.1.3 or later, or use the one that wrote it: nsys export --type sqlite report.nsys-rep"
    )


@pytest.mark.parametrize(
    "content",
    [b"\x1f\x8b\x08\x00 not deflate", gzip.compress(b"{}" * 99, mtime=0)[:-8] + bytes(8)],
    ids=["data", "checksum"],
)
def test_damaged_gzip_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "t.json.gz").write_bytes(content)
    with pytest.raises(TraceError, match=r"t\.json\.gz: .*its gzip is damaged"):
        open_trace(tmp_path / "t.json.gz")
