"""The configurations of the papers: which runs they share, what they cost, and that these fit the papers' node."""

import re
from typing import Any

import pytest
import yaml
from snakemake.utils import update_config

from conftest import ROOT
from multicard.archive.matrix import Matrix
from multicard.experiment.cluster import Cluster
from multicard.experiment.config import Experiment
from multicard.experiment.estimate import estimate_cost
from multicard.experiment.figures import FIGURES
from multicard.experiment.load import check
from multicard.experiment.resources import cpus
from multicard.experiment.runs import Run
from multicard.experiment.workload import WORKLOADS

NAMES = ("quick", "vision", "llm")
# A node of paper B: 2 AMD EPYC 9334 of 32 cores, 4 H100 of 94 GB.
NODE = Cluster(cpus_per_node=64, gpus_per_node=4, gpu_memory_gb=94)


def stated(name: str) -> dict[str, Any]:
    return yaml.safe_load((ROOT / "config" / f"paper-{name}.yaml").read_text())


def planned(config: dict[str, Any]) -> Matrix:
    return Matrix.plan(check(config, "test", outside=False).model_copy(update={"cluster": NODE}))


@pytest.fixture(scope="module")
def plans() -> dict[str, Matrix]:
    return {name: planned(stated(name)) for name in NAMES}


def runs_on_gpus(plan: Matrix) -> list[Run]:
    return [run for run in plan.runs.values() if run.unsupported_reason(plan.machine.hypothetical()) is None]


def test_every_quick_run_is_one_of_the_others_made_of_the_same_data(plans: dict[str, Matrix]) -> None:
    quick, whole = plans["quick"], {**plans["vision"].runs, **plans["llm"].runs}
    for name, run in quick.runs.items():
        assert run == whole[name] and run.inputs == whole[name].inputs
        part = plans[run.parameters.workload]
        assert quick.prepared(name) == part.prepared(name)
    ends = [(plan.experiment.results, plan.experiment.time_limit_min) for plan in plans.values()]
    assert len(set(ends)) == 1


def test_vision_and_llm_together_are_the_runs_of_both(plans: dict[str, Matrix]) -> None:
    both: dict[str, Any] = {}
    for config in map(stated, ("vision", "llm")):
        update_config(both, config)
    assert planned(both).runs == plans["vision"].runs | plans["llm"].runs


def test_quick_takes_an_evening(plans: dict[str, Matrix]) -> None:
    assert estimate_cost(runs_on_gpus(plans["quick"]), 240, 4).wall_h < 5


def test_quick_draws_the_figures_that_answer_the_papers(plans: dict[str, Matrix]) -> None:
    drawn = {figure for scenario in plans["quick"].experiment.scenarios.values() for figure in scenario.figures}
    assert drawn >= {figure.name for figure in FIGURES.values() if figure.answers}


@pytest.mark.parametrize("name", NAMES)
def test_runs_fit_the_papers_node(name: str, plans: dict[str, Matrix]) -> None:
    for run in runs_on_gpus(plans[name]):
        assert cpus(run.parameters) <= NODE.cpus_per_node
        needed = run.device_memory_bytes()
        # All 8 billion weights with their gradients and AdamW's two moments take 64 GB before anything else.
        heavy = getattr(run.parameters, "qat_of", None) == "weights" and run.parameters.devices == 1
        assert heavy or needed < 94e9, run.id


def test_the_loader_sets_the_pace_only_where_workers_are_what_varies(plans: dict[str, Matrix]) -> None:
    for name, runs in plans["vision"].scenarios.items():
        waiting = {
            run.parameters.num_workers
            for run in runs
            if WORKLOADS["vision"].waits_for_loader(run.parameters, run.inputs)
        }
        assert not waiting if name != "num_workers" else 1 in waiting and 15 not in waiting


def test_images_have_the_papers_sizes(plans: dict[str, Matrix]) -> None:
    sizes = {run.parameters.image_size for run in plans["vision"].runs.values()}
    assert sizes == {100, 200, 300, 400, 500}


def test_the_scenario_of_imagenet_needs_only_to_be_uncommented() -> None:
    text = (ROOT / "config" / "paper-vision.yaml").read_text()
    whole = re.sub(r"^  # (imagenet: \{.*)$", r"  \1", text, flags=re.MULTILINE)
    first = whole.index("  # imagenet:")
    whole = whole[:first] + re.sub(r"^  # ", "  ", whole[first:], flags=re.MULTILINE)
    experiment = check(yaml.safe_load(whole), "test", outside=False)
    assert isinstance(experiment, Experiment) and "imagenet" in experiment.scenarios


@pytest.mark.parametrize("name", NAMES)
def test_the_documents_state_what_the_estimate_says(name: str, plans: dict[str, Matrix]) -> None:
    runs = runs_on_gpus(plans[name])
    cost = estimate_cost(runs, plans[name].experiment.time_limit_min, 4)
    row = f"| `config/paper-{name}.yaml` | {len(runs)} | {cost.wall_h:.3g} | {cost.node_gpu_h:.3g} |"
    assert row in (ROOT / "docs" / "cluster.md").read_text()
