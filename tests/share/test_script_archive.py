"""Runs of scripts in an archive: their commands say nothing of people, machines and places, which name the runs."""

from pathlib import Path
from typing import Any

import pytest

from multicard.config.load import check
from multicard.config.runs import distinct, expand
from multicard.core.errors import UserError
from multicard.results.measure import measure_run
from multicard.share.manifest import experiment_of
from multicard.share.pack import pack
from multicard.share.unpack import unpack
from recorded_runs import manifest_of
from script_runs import COMMAND, configuration, parameters_of_all, write_script_run


def packed(folder: Path, command: list[str], python: str | None = None, **args: Any) -> Path:
    """An archive of the runs of a command."""
    vary = {"args": {"batch_size": [32], "amp": ["none"]} | args}
    config = configuration(vary=vary, figures=["step_breakdown"])
    config["scenarios"]["ours"]["fixed"] |= {"command": command} | ({"python": python} if python else {})
    for p in parameters_of_all(config):
        write_script_run(folder / "results", p, 0.1)
    pack(check({"results": str(folder / "results"), **config}, "mine.yaml", outside=False), folder / "runs.tar.gz")
    return folder / "runs.tar.gz"


def test_a_command_without_places_keeps_the_names_of_its_runs(tmp_path: Path) -> None:
    archive = packed(tmp_path, COMMAND, amp=["none", "bf16"])
    (tmp_path / "there").mkdir()
    unpack(archive, tmp_path / "there")
    for folder in (tmp_path / "results" / "runs").iterdir():
        assert measure_run(tmp_path / "there" / folder.name)["args.amp"] == measure_run(folder)["args.amp"]


def test_what_command_and_args_hold_is_scrubbed_and_the_archive_stays_whole(tmp_path: Path) -> None:
    command = [*COMMAND, "--data", "/srv/planted/images", "--out", "{out}"]
    archive = packed(tmp_path, command, "/srv/planted/venv/bin/python", out=["/srv/planted/out"])
    manifest = manifest_of(archive)
    text = manifest.model_dump_json()
    assert not any(word in text for word in ("planted", "/srv"))
    runs = distinct(expand(experiment_of(manifest, archive)))
    assert list(runs) == manifest.runs
    (tmp_path / "there").mkdir()
    unpack(archive, tmp_path / "there")
    row = measure_run(tmp_path / "there" / next(iter(runs)))
    assert row["args.out"] == "path" and row["args.batch_size"] == 32
    assert row["iteration_time_s"] == pytest.approx(0.1)


def test_an_archive_that_could_not_be_read_is_not_written(tmp_path: Path) -> None:
    config = configuration(vary={"args": {"batch_size": [32], "amp": ["/srv/a", "/srv/b"]}}, figures=["step_breakdown"])
    write_script_run(tmp_path / "results", parameters_of_all(config)[0], 0.1)
    experiment = check({"results": str(tmp_path / "results"), **config}, "mine.yaml", outside=False)
    with pytest.raises(UserError, match=r"cannot be archived: with private text removed, .*lists a value twice"):
        pack(experiment, tmp_path / "runs.tar.gz")
    assert not (tmp_path / "runs.tar.gz").exists()


def test_runs_that_differ_in_a_place_only_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="differ only in what an archive leaves out, such as paths"):
        packed(tmp_path, [*COMMAND, "{out}"], out=["/srv/a", "/srv/b"])
