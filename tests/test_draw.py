"""`multicard report` makes of what was recorded all that the workflow makes of runs."""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from conftest import ROOT, refusal
from multicard.cli import main
from multicard.core.files import write_json
from multicard.share.pack import pack
from recorded_runs import FIXED, add_run, experiment, write_configuration

pytestmark = pytest.mark.slow

FIGURES = ["step_breakdown", "step_times", "profiler_overhead"]
ASKED: dict[str, Any] = {
    "recorded": {"question": "What is <recorded>?", "fixed": FIXED, "figures": FIGURES, "repeats": 3}
}


@pytest.fixture(scope="module")
def archive(recorded_results: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An archive of two repeats, of the three that were asked for."""
    path = tmp_path_factory.mktemp("drawn") / "two.tar.gz"
    pack(experiment(recorded_results, scenarios=ASKED), path)
    return path


def drawn_by_the_workflow(results: Path, folder: Path) -> Path:
    """What the programs of the workflow make of the same runs."""
    scripts, scenario = ROOT / "workflow" / "scripts", folder / "scenarios" / "recorded"
    runs = sorted((results / "runs").iterdir())
    folder.mkdir()
    write_json(folder / "runs.json", {"folders": list(map(str, runs)), "not_run": {}})
    for program in (
        ["measure_scenario.py", folder / "runs.json", "--out", scenario],
        ["draw_figures.py", *FIGURES, "--scenario", scenario, "--out", folder / "figures" / "recorded"],
    ):
        subprocess.run([sys.executable, scripts / program[0], *program[1:]], check=True)
    return folder


def numbers(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in sorted(folder.glob("figures/*/*.csv"))}


def refused(*arguments: Path | str) -> str:
    return refusal(lambda: main(["report", *map(str, arguments)]), SystemExit)


@pytest.mark.parametrize("given", ["archive", pytest.param("results", marks=pytest.mark.rare)])
def test_figures_are_those_that_the_workflow_draws(
    given: str, archive: Path, recorded_results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = {"digits": {"source": "digits"}, "mine": {"source": "imagefolder", "folder": "no/such/folder"}}
    config = write_configuration(tmp_path / "a.yaml", recorded_results, datasets=gone, scenarios=ASKED)
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    main(["report", str(archive if given == "archive" else config), "--out", "drawn"])
    assert [path.name for path in Path().iterdir()] == ["drawn"]
    out = Path("drawn")
    assert numbers(out) == numbers(drawn_by_the_workflow(recorded_results, tmp_path / "workflow"))
    assert len(numbers(out)) == len(FIGURES)
    for figure in FIGURES:
        for suffix in ("png", "svg", "pdf"):
            assert (out / "figures" / "recorded" / f"{figure}.{suffix}").stat().st_size > 0
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "What is &lt;recorded&gt;?" in page and "No recommendations were made" not in page
    assert len(pd.read_csv(out / "claims.csv")) == 12
    assert set(pd.read_csv(out / "claims_tests.csv")["claim"]) == set(pd.read_csv(out / "claims.csv")["claim"])
    assert (out / "recommendations.md").read_text().startswith("# Recommendations")
    outcomes = pd.read_csv(out / "scenarios" / "recorded" / "runs.csv")
    assert outcomes["outcome"].tolist() == ["completed", "completed", "not run"]
    assert outcomes["reason"].tolist()[-1] == f"not recorded in {'two.tar.gz' if given == 'archive' else 'results'}"
    assert len([*out.glob("runs/*/run.json")]) == 2
    main(["report", "drawn", "--claims"])  # it is a results folder like any other


def test_what_is_there_is_never_replaced(archive: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    assert "mine: not empty, expected an empty folder" in refused(archive, "--out", tmp_path / "mine")
    assert "notes.txt: a file, expected a folder" in refused(archive, "--out", tmp_path / "mine" / "notes.txt")
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["notes.txt"]
    assert "/proc/x/y: cannot be written: /proc" in refused(archive, "--out", "/proc/x/y")


def test_what_cannot_be_drawn_is_named_and_leaves_nothing(
    archive: Path, recorded_results: Path, tmp_path: Path
) -> None:
    cut, out = tmp_path / "cut.tar.gz", tmp_path / "out"
    cut.write_bytes(archive.read_bytes()[:-2000])
    assert refused(cut, "--out", out).startswith(f"{cut}: not an archive, or cut or damaged: ")
    assert list(tmp_path.iterdir()) == [cut]
    (tmp_path / "empty").mkdir()
    config, other = (
        write_configuration(tmp_path / f"{folder.name}.yaml", folder, fixed=FIXED | {"devices": 1})
        for folder in (tmp_path / "empty", recorded_results)
    )
    for given, says in (
        (tmp_path / "none.tar.gz", "none.tar.gz: no such file"),
        (recorded_results, "has no configuration; pass the configuration file"),
        (config, "found no results, expected a folder with runs/*/run.json, or "),
        (other, "found no complete run of the experiment"),
    ):
        assert says in refused(given, "--out", out)
    assert not out.exists()


def test_an_incomplete_run_is_listed_and_a_damaged_one_is_named(
    recorded_results: Path, extracted_run: Path, tmp_path: Path
) -> None:
    results = Path(shutil.copytree(recorded_results, tmp_path / "results"))
    config = write_configuration(tmp_path / "a.yaml", results, scenarios=ASKED)
    third = add_run(extracted_run, results, repeat=3)
    (third / "activity" / "cuda_api.parquet").unlink()
    main(["report", str(config), "--out", str(tmp_path / "out")])
    [reason] = pd.read_csv(tmp_path / "out/scenarios/recorded/runs.csv")["reason"].dropna()
    assert reason == "incomplete: activity/cuda_api.parquet is missing"
    (third / "activity" / "cuda_api.parquet").write_bytes(b"PAR1")
    assert refused(config, "--out", tmp_path / "again").startswith(
        f"{third}/activity/cuda_api.parquet: cut or altered since it was made"
    )
