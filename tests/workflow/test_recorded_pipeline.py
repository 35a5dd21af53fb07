"""Figures from recorded runs through Snakemake, without the hardware and without running anything."""

import json
from pathlib import Path

import pandas as pd
import pytest
import yaml
from test_pipeline import project, snakemake

from recorded_runs import ON_GPUS, archive_of_cards, configuration

pytestmark = pytest.mark.slow


def test_everything_is_drawn_from_an_archive_without_running_anything(extracted_run: Path, tmp_path: Path) -> None:
    folder = project(tmp_path / "my project")
    gpu_archive = archive_of_cards(extracted_run, tmp_path)
    config = configuration(Path("results"), 2, ON_GPUS, recorded=[str(gpu_archive)])
    (folder / "config/recorded.yaml").write_text(yaml.safe_dump(config))
    done = snakemake(folder, config="config/recorded.yaml")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    scenario = folder / "results/scenarios/recorded"
    outcomes = pd.read_csv(scenario / "runs.csv").set_index("outcome")
    assert outcomes.loc["completed", "host"] == "host-1"
    assert outcomes.loc["not run", "reason"] == "needs a CUDA GPU, none found"
    assert pd.read_csv(scenario / "measures.csv")["iteration_time_s"].notna().all()
    assert (folder / "results/figures/recorded/step_breakdown.png").stat().st_size > 0
    lines = "Without numbers: 1 not run here"
    assert lines in (folder / "results/figures/recorded/step_breakdown.svg").read_text()
    assert pd.read_csv(scenario / "table_costs.csv")["iteration_time_s"].notna().all()
    [record] = (folder / "results/runs").glob("*/run.json")
    assert json.loads(record.read_text())["recorded"]["archive"] == "gpus.tar.gz"
    assert not (folder / "data").exists()

    again = snakemake(folder, "--dry-run", config="config/recorded.yaml")
    assert "Nothing to be done" in again.stdout + again.stderr
