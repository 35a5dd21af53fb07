"""What only reads results needs no more: no place to write, no data, and no name of the configuration of `scale`."""

import re
import shutil
from pathlib import Path

import pytest

from multicard.cli import main
from multicard.experiment import load
from recorded_runs import write_configuration

pytestmark = pytest.mark.slow


def test_status_and_archive_read_results_that_cannot_be_written(
    recorded_results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(recorded_results, "results")
    sets = {"mine": {"source": "imagefolder", "folder": "gone"}, "digits": {"source": "digits"}}
    write_configuration(Path("multicard.yaml"), Path("results"), 2, datasets=sets)
    with monkeypatch.context() as patched:
        patched.setattr(load, "unwritable", lambda folder: f"{folder}: Permission denied")  # root may write everywhere
        main(["status"])
        main(["archive", "--out", "all.tar.gz"])
    *_, counts, packed = capsys.readouterr().out.splitlines()
    assert counts == "2 completed"
    assert re.fullmatch(r"runs: 2, .*: all\.tar\.gz", packed)
    write_configuration(Path("multicard.yaml"), Path("results"), 2)
    # As those above, it need not be told the name that scale gives.
    main(["run", "--dry-run"])
    found = capsys.readouterr().out
    main(["run", "multicard.yaml", "--dry-run"])
    assert found == capsys.readouterr().out != ""
