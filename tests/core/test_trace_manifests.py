"""The manifests of a trace are written as they are read, and as they always were."""

import hashlib
import json
from pathlib import Path

import pytest

from multicard.core.errors import UserError
from multicard.core.trace_manifests import Captured, Exported, TraceFile, read_captured, read_exported


def test_manifests_are_read_as_they_were_written(tmp_path: Path) -> None:
    (tmp_path / "report.sqlite").write_bytes(b"rows")
    files = (TraceFile.of(tmp_path / "report.sqlite"), TraceFile.of(tmp_path / "report.sqlite", node=1))
    captured = Captured("nsys", None, files)
    captured.write(tmp_path)
    assert read_captured(tmp_path) == captured
    exported = Exported("nsys", "no space", (), captured_sha256="0" * 64)
    exported.write(tmp_path)
    assert read_exported(tmp_path) == exported


def test_a_file_of_a_job_on_one_node_has_no_node(tmp_path: Path) -> None:
    (tmp_path / "rank0.json").write_bytes(b"{}")
    Captured("kineto", None, (TraceFile.of(tmp_path / "rank0.json"),)).write(tmp_path)
    assert json.loads((tmp_path / "captured.json").read_text()) == {
        "profiler": "kineto",
        "missing": None,
        "files": [{"name": "rank0.json", "bytes": 2, "sha256": hashlib.sha256(b"{}").hexdigest()}],
    }


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('{"profiler": "nsys", "missing": null}', "found no files, expected a list of the files of a trace"),
        ('{"profiler": "nsys", "missing": null, "files": [{"name": "a"}]}', "expected entries with name, bytes"),
        ('{"profiler": "nsys", "missing": null, "files": [7]}', "expected entries with name, bytes"),
    ],
)
def test_a_damaged_manifest_is_refused_in_a_line(content: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "captured.json").write_text(content)
    with pytest.raises(UserError, match=said) as refused:
        read_captured(tmp_path)
    assert str(refused.value).startswith(f"{tmp_path / 'captured.json'}") and "\n" not in str(refused.value)
