"""Experiments whose repeats were added until they decided: what an archive, and what is made of it, says of them."""

import json
import math
from contextlib import chdir
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml
from scipy import stats

from console import multicard
from multicard.answers.outputs import write_scenario
from multicard.config.added_repeats import AddedRepeats, write_added
from multicard.config.load import read_experiment
from multicard.config.runs import expand
from multicard.core.files import write_json
from multicard.stats.looks import level_of_look
from recorded_runs import manifest_of
from script_runs import configuration, write_script_run

MOST, ADDED = 10, 4
REPEATS = {"until": "5%", "least": 2, "most": MOST}
# How much longer the steps of each repeat last, of both configurations.
FACTORS = (1.01, 0.99, 1.02, 0.98)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an experiment that has four repeats of two configurations, their results, and an archive."""
    folder = tmp_path_factory.mktemp("added")
    vary = {"args": {"batch_size": [32, 64], "amp": ["none"]}}
    stated = configuration(vary=vary, repeats=REPEATS, figures=["step_times"])
    (folder / "mine.yaml").write_text(yaml.safe_dump({"results": "results", **stated}))
    with chdir(folder):
        results = Path("results")
        write_added(results, {"ours": AddedRepeats(repeats=ADDED, decided=0.05)})
        experiment = read_experiment(Path("mine.yaml"), outside=False)
        runs = []
        for run in expand(experiment)["ours"]:
            p: Any = run.parameters
            size = p.args["batch_size"]
            runs.append(write_script_run(results, p, 0.001 * size * FACTORS[p.repeat - 1], samples=size))
        write_scenario(runs, {}, results / "scenarios" / "ours", looks=experiment.scenarios["ours"].repeats.looks)
    done = multicard("archive", "mine.yaml", "--out", "mine.tar.gz", folder=folder)
    assert done.returncode == 0, done.stderr
    return folder


def test_an_archive_has_the_repeats_that_were_added(folder: Path) -> None:
    manifest = manifest_of(folder / "mine.tar.gz")
    assert len(manifest.runs) == 2 * ADDED
    assert manifest.experiment["scenarios"]["ours"]["repeats"] == REPEATS | {"least": ADDED}


def test_a_report_of_an_archive_has_them_whatever_results_are_beside_it(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    write_json(tmp_path / "results/repeats.json", {"ours": {"repeats": 7}})
    done = multicard("report", folder / "mine.tar.gz", "--out", "drawn", folder=tmp_path)
    assert done.stdout.startswith("runs: 8, figures: 1, ")
    scenario = tmp_path / "drawn/scenarios/ours"
    assert pd.read_csv(scenario / "runs.csv")["outcome"].tolist() == ["completed"] * 2 * ADDED
    assert json.loads((scenario / "tables.json").read_text())["looks"] == MOST - 1


@pytest.mark.parametrize("source", ["results", "mine.yaml", "mine.tar.gz"])
def test_recommendations_say_how_many_repeats_there_are(source: str, folder: Path) -> None:
    done = multicard("recommend", source, folder=folder)
    assert f"{ADDED} repeats of each configuration" in " ".join(done.stdout.split())


@pytest.mark.parametrize("source", ["results", "mine.tar.gz"])
def test_a_comparison_has_all_repeats_and_allows_for_each_look_at_them(source: str, folder: Path) -> None:
    done = multicard("compare", source, "results", "--measure", "iteration_time", "--json", folder=folder)
    changes = json.loads(done.stdout)["changes"]
    assert [change["repeats"] for change in changes] == [[ADDED, ADDED]] * 2
    # Both configurations scatter alike on both sides, which have three degrees of freedom each.
    scatter = np.std(np.log(FACTORS), ddof=1)
    reach = stats.t.ppf((1 + level_of_look(MOST - 1)) / 2, 4 * (ADDED - 1)) * scatter * math.sqrt(2 / ADDED)
    for change in changes:
        bounds = change["change"]["low"], change["change"]["high"]
        assert bounds == pytest.approx((math.exp(-reach) - 1, math.exp(reach) - 1), rel=1e-2)
