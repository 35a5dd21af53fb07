"""The configuration in an archive asks for the runs that were asked for."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from conftest import ROOT, refusal
from multicard.config.experiment import Experiment
from multicard.config.runs import expand
from multicard.share.manifest import FORMAT, Manifest, configuration_of, experiment_of

SIMPLE: dict[str, Any] = {"question": "?", "fixed": {"device": "cpu"}, "figures": ["step_breakdown"]}
# Each states a value that is a default somewhere: of all scenarios, of the other workload, or of a preset.
OVERRIDING: dict[str, Any] = {
    "datasets": {
        "birds": {"source": "imagefolder", "folder": "/data/birds", "unreadable": "skip"},
        "mine": {"source": "text-file", "path": "/data/mine.jsonl", "samples": "instruction"},
        "chats": {"source": "shipped-text", "texts": "chats"},
        "digits": {"source": "digits"},
    },
    "fixed": {"device": "cpu", "dataset": "birds", "precision": "fp16", "batch_size": 8, "warmup_steps": 2},
    "scenarios": {
        "formats": SIMPLE | {"fixed": {"precision": "fp32", "dataset": "digits"}},
        "batches": SIMPLE | {"fixed": {"batch_size": 64, "warmup_steps": 10}},
        "tuned": SIMPLE | {"fixed": {"preset": "tuned", "layout": "nchw"}},
        "texts": {
            "question": "?", "repeats": 2, "figures": ["loss"],
            "fixed": {"workload": "llm", "precision": "fp32", "technique": "lora"},
            "vary": {"dataset": ["mine", "chats"]},
        },
    },
}  # fmt: skip


def read_back(experiment: Experiment) -> Experiment:
    manifest = {"format": FORMAT, "multicard": "1", "experiment": configuration_of(experiment), "files": []}
    return experiment_of(Manifest.model_validate(json.loads(json.dumps(manifest))), Path("a.tar.gz"))


@pytest.mark.parametrize("config", ["overriding", "paper-llm.yaml"])
def test_it_expands_into_the_same_runs(config: str) -> None:
    stated = OVERRIDING if config == "overriding" else yaml.safe_load((ROOT / "config" / config).read_text())
    experiment = Experiment.model_validate(stated)
    again = read_back(experiment)
    assert {name: [run.parameters for run in runs] for name, runs in expand(again).items()} == {
        name: [run.parameters for run in runs] for name, runs in expand(experiment).items()
    }
    for name, scenario in experiment.scenarios.items():
        kept = again.scenarios[name]
        assert (kept.question, kept.figures) == (scenario.question, scenario.figures)


def test_it_tells_no_place_of_data(tmp_path: Path) -> None:
    told = configuration_of(Experiment.model_validate(OVERRIDING | {"results": "far/away"}))
    assert "/data" not in json.dumps(told) and "away" not in json.dumps(told)


LLM = SIMPLE | {"fixed": {"workload": "llm", "strategy": "ddp"}}


@pytest.mark.parametrize(
    ("experiment", "says"),
    [
        ({}, "experiment: scenarios: missing"),
        ({"scenarios": {"a": SIMPLE | {"figures": ["x"]}}}, "experiment: scenarios.a.figures.0: found 'x', expected"),
        ({"scenarios": {"a": LLM}}, "experiment: scenarios.a.fixed.strategy: not a parameter of the workload llm"),
        ({"scenarios": {"a": SIMPLE | {"\x1b[31m": 1}}}, "experiment: scenarios.a.�[31m: unknown key"),
        ({"scenarios": {"a": SIMPLE}, "datasets": {"x": {"source": "new"}}}, "experiment: datasets.x.source: "),
    ],
)
def test_a_configuration_of_another_version_is_refused_in_one_line(experiment: dict[str, Any], says: str) -> None:
    manifest = Manifest(format=FORMAT, multicard="1", experiment=experiment, files=[])
    line = refusal(lambda: experiment_of(manifest, Path("a.tar.gz")))
    assert line.startswith(f"a.tar.gz: manifest.json: {says}")
