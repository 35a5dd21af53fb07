"""What only reads results needs no more: no place to write, no data, and no name of the configuration of `scale`."""

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


@pytest.mark.parametrize("command", ["status", "runs", "config", "archive"])
def test_the_configuration_that_scale_writes_need_not_be_named(
    recorded_results: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(recorded_results, "results")
    config = write_configuration(Path("multicard.yaml"), Path("results"), 2)
    more = ["all.zip"] if command == "archive" else []
    main([command, *more])
    found = capsys.readouterr().out
    main([command, *more, "--config", str(config)])
    assert found == capsys.readouterr().out != ""
