"""The configurations of the papers: which runs they share, what they cost, and that these fit the papers' node."""

import re
from typing import Any

import pytest
import yaml
from snakemake.utils import update_config

from conftest import ROOT
from multicard.config.cluster import Cluster
from multicard.config.estimate import estimate_cost
from multicard.config.experiment import Experiment
from multicard.config.figures import FIGURES
from multicard.config.load import check
from multicard.config.plan import Plan
from multicard.config.runs import Run
from multicard.figures.catalog import load_drawing
from multicard.observe.record.profiled_window import place_window
from multicard.programs.vision.parameters import VisionParameters

pytestmark = pytest.mark.slow

NAMES = ("quick", "vision", "llm")
# A node of paper B: 2 AMD EPYC 9334 of 32 cores, 4 H100 of 94 GB.
NODE = Cluster(cpus_per_node=64, gpus_per_node=4, gpu_memory_gb=94)


def stated(name: str) -> dict[str, Any]:
    return yaml.safe_load((ROOT / "config" / f"paper-{name}.yaml").read_text())


def planned(config: dict[str, Any]) -> Plan:
    return Plan.make(check(config, "test", outside=False).model_copy(update={"cluster": NODE}))


@pytest.fixture(scope="module")
def plans() -> dict[str, Plan]:
    return {name: planned(stated(name)) for name in NAMES}


def runs_on_gpus(plan: Plan) -> list[Run]:
    return [run for run in plan.runs.values() if run.unsupported_reason(plan.machine.hypothetical()) is None]


def test_every_quick_run_is_one_of_the_others_made_of_the_same_data(plans: dict[str, Plan]) -> None:
    quick, whole = plans["quick"], {**plans["vision"].runs, **plans["llm"].runs}
    for name, run in quick.runs.items():
        assert run == whole[name] and run.inputs == whole[name].inputs
        part = plans[run.parameters.workload]
        assert quick.prepared(name) == part.prepared(name)
    ends = [(plan.experiment.results, plan.experiment.time_limit_min) for plan in plans.values()]
    assert len(set(ends)) == 1


def test_vision_and_llm_together_are_the_runs_of_both(plans: dict[str, Plan]) -> None:
    both: dict[str, Any] = {}
    for config in map(stated, ("vision", "llm")):
        update_config(both, config)
    assert planned(both).runs == plans["vision"].runs | plans["llm"].runs


def test_quick_takes_an_evening_and_draws_the_figures_that_answer_the_papers(plans: dict[str, Plan]) -> None:
    assert estimate_cost(runs_on_gpus(plans["quick"]), 240, 4).wall_h < 5
    drawn = {figure for scenario in plans["quick"].experiment.scenarios.values() for figure in scenario.figures}
    assert drawn >= {name for name in FIGURES if load_drawing(name).paper_figure}


@pytest.mark.parametrize("name", NAMES)
def test_runs_fit_the_papers_node(name: str, plans: dict[str, Plan]) -> None:
    for run in runs_on_gpus(plans[name]):
        assert run.parameters.cpus_per_node <= NODE.cpus_per_node
        needed = run.device_memory_bytes() or 0  # of vision runs nothing is estimated
        # All 8 billion weights with their gradients and AdamW's two moments take 64 GB before anything else.
        heavy = getattr(run.parameters, "qat_of", None) == "weights" and run.parameters.devices == 1
        assert heavy or needed < 94e9, run.id


TRAINING_IMAGES = 60_000  # of MNIST, and of the synthetic images


def batches_ahead(p: VisionParameters, source: str) -> int:
    """What PyTorch's DataLoader (`num_workers` x `prefetch_factor`) or DALI (its queue) holds of one process."""
    if source == "synthetic":
        return 0
    processes_of_one = p.devices if p.strategy == "dp" else 1
    return p.prefetch_factor * (1 if p.loader == "dali" else processes_of_one * p.num_workers)


def steps_in_pass(p: VisionParameters, images: int) -> int:
    """All images are shared by the GPUs, except that each rank of plain ddp passes over all of them."""
    return images // (p.batch_size * (1 if p.strategy == "ddp" else p.devices))


@pytest.mark.parametrize("name", ["quick", "vision"])
def test_no_profiled_window_crosses_a_pass_or_is_too_long(name: str, plans: dict[str, Plan]) -> None:
    looked_at = set()
    for run in runs_on_gpus(plans[name]):
        if not isinstance(p := run.parameters, VisionParameters):
            continue
        source = run.inputs["dataset"].source
        assert source in ("mnist", "synthetic") and getattr(run.inputs["dataset"], "limit", None) is None
        ahead, in_pass = batches_ahead(p, source), steps_in_pass(p, TRAINING_IMAGES)
        # 2 x ahead before the profiler starts, 2 x ahead dropped after, 4 x ahead recorded.
        assert 8 * ahead <= in_pass, run.id
        assert p.warmup_steps >= ahead, run.id
        window, measured = place_window(ahead, in_pass, 0, p.profiled_steps), in_pass * p.epochs - p.warmup_steps
        if p.steps_per_epoch:
            assert p.steps_per_epoch <= in_pass and p.epochs == 1
            measured = p.steps_per_epoch - p.warmup_steps
        assert not window.crosses_pass and window.profiled_steps <= measured
        looked_at.add((p.strategy, p.devices, ahead))
    assert ("dp", 4, 28) in looked_at  # as the comments say


@pytest.mark.parametrize(("name", "control"), [("vision", "profiling"), ("llm", "profiling_tuning")])
def test_only_controls_without_a_profiler_are_additional(name: str, control: str, plans: dict[str, Plan]) -> None:
    scenarios = plans[name].scenarios
    others = {run.id for other, runs in scenarios.items() if other != control for run in runs}
    additional = [run for run in scenarios[control] if run.id not in others]
    assert {run.parameters.profiler for run in additional} == {"none"}
    assert 2 * len(additional) == len(scenarios[control])


def test_images_have_the_papers_sizes_and_the_profile_states_their_cpus(plans: dict[str, Plan]) -> None:
    scenarios = plans["vision"].scenarios | plans["llm"].scenarios
    needed = {name: max(run.parameters.cpus_per_node for run in runs) for name, runs in scenarios.items()}
    assert {run.parameters.image_size for run in plans["vision"].runs.values()} == {100, 200, 300, 400, 500}
    # On each GPU a training process and seven workers; fourteen where their number varies.
    assert needed.pop("num_workers") == 4 * 15 and max(needed.values()) == 4 * 8
    stated = " ".join((ROOT / "profiles" / "slurm" / "config.yaml").read_text().replace("#", "").split())
    assert "papers' runs on four GPUs need 32 CPUs, and up to 60 where they vary the number of loader" in stated


def test_the_scenario_of_imagenet_needs_only_to_be_uncommented() -> None:
    text = (ROOT / "config" / "paper-vision.yaml").read_text()
    whole = re.sub(r"^  # (imagenet: \{.*)$", r"  \1", text, flags=re.MULTILINE)
    first = whole.index("  # imagenet:")
    whole = whole[:first] + re.sub(r"^  # ", "  ", whole[first:], flags=re.MULTILINE)
    experiment = check(yaml.safe_load(whole), "test", outside=False)
    assert isinstance(experiment, Experiment) and "imagenet" in experiment.scenarios


@pytest.mark.parametrize("name", NAMES)
def test_the_documents_state_what_the_estimate_says(name: str, plans: dict[str, Plan]) -> None:
    runs = runs_on_gpus(plans[name])
    cost = estimate_cost(runs, plans[name].experiment.time_limit_min, 4)
    row = f"| `config/paper-{name}.yaml` | {len(runs)} | {cost.wall_h:.3g} | {cost.node_gpu_h:.3g} |"
    assert row in (ROOT / "docs" / "cluster.md").read_text()
