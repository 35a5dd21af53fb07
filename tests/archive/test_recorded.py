"""Recorded runs stand for runs that cannot take place here."""

import json
from pathlib import Path
from typing import Any

import pytest

from conftest import ROOT
from multicard.archive.pack import pack
from multicard.archive.recorded import find_recorded, unsupported_reasons
from multicard.cli import main
from multicard.core.errors import UserError
from multicard.experiment.config import Experiment
from multicard.experiment.load import check
from multicard.experiment.machine import Machine
from multicard.experiment.runs import Run, distinct, expand
from recorded_runs import ON_GPUS, add_run, archive_of_cards, configuration, experiment, write_configuration

HERE = Machine(cpus=2, gpus=0)


@pytest.fixture(scope="session")
def gpu_archive(extracted_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An archive of a synthetic run on two GPUs."""
    return archive_of_cards(extracted_run, tmp_path_factory.mktemp("gpu"))


def on_cards(results: Path, repeats: int = 1, **keys: Any) -> Experiment:
    return experiment(results, repeats, ON_GPUS, **keys)


def reasons(asked: Any) -> tuple[dict[str, Run], dict[str, str | None]]:
    runs = distinct(expand(asked))
    return runs, unsupported_reasons(asked, runs, HERE, find_recorded(asked, runs))


@pytest.mark.slow
def test_a_recorded_run_needs_no_card_and_the_others_say_what_they_need(gpu_archive: Path, tmp_path: Path) -> None:
    lacking = "needs a CUDA GPU, none found"
    assert set(reasons(on_cards(tmp_path, 2))[1].values()) == {lacking}
    runs, given = reasons(on_cards(tmp_path, 2, recorded=[str(gpu_archive)]))
    assert {runs[run].parameters.repeat: reason for run, reason in given.items()} == {1: None, 2: lacking}


@pytest.mark.slow
def test_a_run_on_another_data_set_of_that_name_is_not_taken(gpu_archive: Path, tmp_path: Path) -> None:
    fewer = {"digits": {"source": "digits", "limit": 99}}
    [reason] = reasons(on_cards(tmp_path, datasets=fewer, recorded=[str(gpu_archive)]))[1].values()
    assert reason == f"needs a CUDA GPU, none found; not taken from {gpu_archive}: its data set digits is another one"


@pytest.mark.slow
def test_the_data_set_of_a_recorded_run_may_be_elsewhere(extracted_run: Path, tmp_path: Path) -> None:
    there = tmp_path / "there"
    (there / "a").mkdir(parents=True)
    add_run(extracted_run, tmp_path / "results", dataset="mine", device="cuda")

    def asked(folder: Path) -> dict[str, Any]:
        config = configuration(tmp_path / "results", 2, ON_GPUS | {"dataset": "mine"})
        return config | {"datasets": {"mine": {"source": "imagefolder", "folder": str(folder)}}}

    pack(check(asked(there), "a.yaml"), tmp_path / "x.tar.gz")
    elsewhere = asked(tmp_path / "gone") | {"results": str(tmp_path / "new")}
    with pytest.raises(UserError, match=r"datasets\.mine\.folder: no such folder"):
        check(elsewhere, "a.yaml")
    read = check(elsewhere | {"recorded": [str(tmp_path / "x.tar.gz")]}, "a.yaml")
    runs = distinct(expand(read))
    on_a_machine_with_gpus = Machine(cpus=2, gpus=2)
    found = unsupported_reasons(read, runs, on_a_machine_with_gpus, find_recorded(read, runs))
    assert list(found.values()) == [None, f"no data set mine: folder: no such folder: {tmp_path / 'gone'}"]


@pytest.mark.slow
def test_a_run_of_this_machine_comes_before_a_recorded_one(recorded_archive: Path, tmp_path: Path) -> None:
    asked = experiment(tmp_path, 2, recorded=[str(recorded_archive)])
    runs = distinct(expand(asked))
    assert len(find_recorded(asked, runs).archives) == 2
    own = tmp_path / "runs" / next(iter(runs))
    own.mkdir(parents=True)
    (own / "run.json").write_text("{}")
    found = find_recorded(asked, runs)
    assert own.name not in found.archives
    assert "holds another record of it, which is kept" in found.differing[own.name]
    (own / "run.json").write_text(json.dumps({"recorded": {"archive": "x", "sha256": "0"}}))
    assert own.name in find_recorded(asked, runs).archives


def test_bad_lists_of_archives_are_one_line(tmp_path: Path) -> None:
    path = tmp_path / "x.tar.gz"
    path.touch()
    for recorded, says in (
        (["none.tar.gz"], "recorded.0: no such file: none.tar.gz"),
        (["x.rar"], "recorded.0: found 'x.rar', expected a name that ends in .tar.gz"),
        ("x.tar.gz", "recorded: found 'x.tar.gz', input should be a valid list"),
        ([str(path)] * 2, f"recorded.1: lists {path} twice"),
    ):
        with pytest.raises(UserError) as stopped:
            experiment(tmp_path, recorded=recorded)
        [line] = str(stopped.value).splitlines()
        assert says in line


@pytest.mark.slow
def test_the_commands_archive_runs_and_status(
    gpu_archive: Path, recorded_results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def multicard(*arguments: object) -> str:
        main([*map(str, arguments)])
        return capsys.readouterr().out

    config = write_configuration(tmp_path / "a.yaml", recorded_results, 2)
    assert multicard("archive", config, "--out", tmp_path / "out.tar.gz").startswith("runs: 2, ")
    slurm = ("--profile", ROOT / "profiles/slurm")
    assert multicard("archive", config, *slurm, "--out", tmp_path / "slurm.tar.gz").startswith("runs: 2, ")
    with pytest.raises(SystemExit, match=r"^out\.rar: expected a name that ends in"):
        multicard("archive", config, "--out", "out.rar")

    write_configuration(config, tmp_path / "new", 2, ON_GPUS, recorded=[str(gpu_archive)])
    listed = multicard("run", config, "--dry-run")
    assert "recorded in" in listed
    assert "2 runs, 0 can run here, 1 recorded (" in listed
    assert multicard("status", config).splitlines()[-1] == "1 waiting, 1 cannot run here"
