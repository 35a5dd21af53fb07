"""Results as a notebook asks for them."""

import json
import shutil
from pathlib import Path

import pandas as pd
import pytest

import multicard
from conftest import refusal
from factories import vision_runs, write_results
from multicard.api.results import ExperimentResults
from multicard.core.errors import UserError
from multicard.share.pack import pack
from recorded_runs import experiment


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> ExperimentResults:
    """Two scenarios that share the runs on one device."""
    folder = tmp_path_factory.mktemp("made") / "results"
    one, two = (vision_runs(90.0 * count, devices=count, iteration_time_s=0.5 / count) for count in (1, 2))
    write_results(folder, [*one, *two], one)
    return multicard.read_results(folder)


def test_a_parameter_that_tells_scenarios_apart_has_its_value_in_every_row(tmp_path: Path) -> None:
    """One scenario varies the strategy, all runs of the other have the same."""
    several = [row for name in ("ddp", "ddp-ds") for row in vision_runs(90.0, devices=1, strategy=name)]
    write_results(tmp_path, several, vision_runs(80.0, devices=1, strategy="single"))
    table = multicard.read_results(tmp_path).speedup
    assert set(table.groupby("scenario")["strategy"].agg(set)["s0"]) == {"ddp", "ddp-ds"}
    assert table.loc[table["scenario"] == "s1", "strategy"].tolist() == ["single"]


def test_tables_name_their_scenario(results: ExperimentResults) -> None:
    assert results.scenarios == ["s0", "s1"]
    assert results.measures.columns[:2].tolist() == ["scenario", "run"]
    assert results.measures["scenario"].value_counts().to_dict() == {"s0": 6, "s1": 3}
    assert results.runs["outcome"].tolist() == ["completed"] * 9
    at_two = results.speedup.query("scenario == 's0' and devices == 2")
    assert at_two["speedup"].tolist() == pytest.approx([2.0])


def test_one_scenario_is_asked_for_by_its_name(results: ExperimentResults) -> None:
    assert len(results.scenario("s1").measures) == 3
    with pytest.raises(UserError, match="found no scenario x, expected one of s0, s1"):
        results.scenario("x")
    with pytest.raises(UserError, match="found several scenarios, expected one of s0, s1"):
        results.figure("speedup")
    with pytest.raises(UserError, match="no table x of a scenario, expected one of cuda_api"):
        results.scenario("s0")["x"]
    assert results.steps.columns[0] == "run" and results.scenario("s0")["steps"].empty


def test_a_figure_of_a_scenario(results: ExperimentResults) -> None:
    import matplotlib.pyplot as plt

    before = plt.get_fignums()
    titles = [axes.get_title(loc="left") for axes in results.figure("speedup", scenario="s0").get_axes()]
    assert titles == ["Speed-up", "Efficiency"]
    assert plt.get_fignums() == before
    with pytest.raises(UserError, match="no figure x, expected one of "):
        results.figure("x", scenario="s0")
    needs = "techniques needs vary.technique and workload llm"
    with pytest.raises(UserError, match=f"{needs}, found the workload vision in the scenario s1"):
        results.figure("techniques", "s1")


def test_a_figure_of_a_scenario_without_any_record_says_that_no_run_completed(tmp_path: Path) -> None:
    folder = write_results(tmp_path, vision_runs(100.0))
    measures = folder / "scenarios" / "s0" / "measures.csv"
    measures.write_text(measures.read_text().splitlines()[0] + "\n")
    figure = multicard.read_results(folder).figure("step_breakdown", scenario="s0")
    assert "No run completed" in {text.get_text() for text in figure.texts}


def test_claims_and_recommendations(results: ExperimentResults) -> None:
    assert len(results.claims()) == 12
    assert results.recommendations()._repr_markdown_().startswith("# Recommendations")


@pytest.mark.slow
def test_an_archive_gives_what_its_folder_gives(recorded_results: Path, recorded_archive: Path, tmp_path: Path) -> None:
    archive = multicard.read_results(recorded_archive)
    assert archive.scenarios == ["recorded"]
    assert len(archive.measures) == 2 and len(archive.steps) > 0
    assert archive.runs["outcome"].tolist() == ["completed"] * 2
    found = archive.compare(multicard.read_results(recorded_results))
    assert set(found.table["verdict"]) <= {"undecided", "cannot tell"}
    assert (found.missing, found.added) == ([], [])
    assert "<table" in found._repr_html_() and "recorded" in archive._repr_html_()
    [training] = archive.choices().itertuples()
    one, two = archive.measures["throughput_samples_per_s"]
    assert training.throughput_per_s == pytest.approx((one * two) ** 0.5)
    assert "say nothing about GPUs" in archive.recommendations()


@pytest.mark.slow
def test_damage_in_an_archive_is_told_by_the_archive_and_its_member(recorded_results: Path, tmp_path: Path) -> None:
    """An archive whose checksums fit, and that has an impossible step."""
    changed = tmp_path / "results"
    shutil.copytree(recorded_results, changed)
    run, _ = sorted(path.parent for path in changed.glob("runs/*/run.json"))
    steps = pd.read_csv(run / "steps.csv")
    steps.loc[3, "duration_s"] = -1
    steps.to_csv(run / "steps.csv", index=False)
    record = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(record | {"files": []}))
    archive = tmp_path / "two.tar.gz"
    pack(experiment(changed, 2), archive)
    for ask in (lambda results: results.measures, lambda results: results.compare(results)):
        line = refusal(lambda ask=ask: ask(multicard.read_results(archive)))
        assert line.startswith(f"{archive}: runs/{run.name}/steps.csv: found -1 in the column")


@pytest.mark.slow
def test_what_holds_no_results_is_one_line(tmp_path: Path, recorded_results: Path) -> None:
    for path in (tmp_path, tmp_path / "none", tmp_path / "none.tar.gz"):
        assert refusal(lambda path=path: multicard.read_results(path)).startswith(f"{path}: ")
    with pytest.raises(UserError, match=r"found no scenarios/\*/measures\.csv"):
        _ = multicard.read_results(recorded_results).measures
