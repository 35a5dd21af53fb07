"""What only reads results works on those of others, which one may not write, and whose data one may not have."""

import re
import shutil
from pathlib import Path

import pytest

from multicard.cli import main
from multicard.experiment import load
from recorded_runs import write_configuration


def test_status_and_archive_read_results_that_cannot_be_written(
    recorded_results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    results = Path(shutil.copytree(recorded_results, tmp_path / "results"))
    images = {"mine": {"source": "imagefolder", "folder": str(tmp_path / "gone")}}
    config = write_configuration(
        tmp_path / "config.yaml", results, 2, datasets=images | {"digits": {"source": "digits"}}
    )
    monkeypatch.setattr(load, "unwritable", lambda folder: f"{folder}: Permission denied")  # root may write everywhere
    main(["status", "--config", str(config)])
    main(["archive", "--config", str(config), str(tmp_path / "all.zip")])
    counts, packed = capsys.readouterr().out.splitlines()
    assert counts == "2 completed"
    assert re.fullmatch(rf"runs: 2, .*: {re.escape(str(tmp_path / 'all.zip'))}", packed)
