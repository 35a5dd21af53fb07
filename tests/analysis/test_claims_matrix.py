"""The matrix of the papers has the runs that decide their claims."""

import pytest
from claim_worlds import CLAIMS, verdict_on
from synthetic_results import Row, made

from conftest import ROOT
from multicard.analysis.claims import Claim, judge
from multicard.analysis.evidence import OBSERVATION, Evidence
from multicard.experiment.load import read_experiment
from multicard.experiment.machine import Machine
from multicard.experiment.runs import expand


@pytest.fixture(scope="module")
def papers_runs(tmp_path_factory: pytest.TempPathFactory) -> Evidence:
    """All runs of the papers' configurations that a machine could run, with equal numbers."""
    machine = Machine.here().hypothetical()
    shares = dict.fromkeys(("communication_s", "overlapped_s", "exposed_communication_s", "memory_s"), 0.0)
    idle = dict.fromkeys(("idle_s", "idle_host_bound_s", "idle_collective_s", "idle_other_s"), 0.0)
    scenarios: list[list[Row]] = []
    tables: dict[str, list[Row]] = {"cuda_api": [], "timeline": [], "epochs": []}
    for config in ("paper-vision", "paper-llm"):
        for runs in expand(read_experiment(ROOT / "config" / f"{config}.yaml", outside=False)).values():
            start = sum(map(len, scenarios))
            scenarios.append([])
            for run in runs:
                if run.unsupported_reason(machine) is not None:
                    continue
                at = {"at": start + len(scenarios[-1])}
                speeds = ("throughput_samples_per_s", "processed_samples_per_s", "tokens_per_s", "iteration_time_s")
                measures = dict.fromkeys((*speeds, "test_accuracy", "peak_memory_bytes"), 1.0)
                measures |= {"data_share": 0.02, "profiler_overhead": 0.02, "parameters": 8_030_000_000}
                scenarios[-1].append(run.parameters.model_dump() | measures)
                tables["cuda_api"].append(at | {"api": "runtime", "function": "cudaLaunchKernel", "total_s": 1.0})
                tables["epochs"].append(at | {"epoch": 1, "test_accuracy": 0.99})
                spans = {"scope": "steps", "span_s": 1.0, "busy_s": 1.0, "compute_s": 1.0}
                tables["timeline"].append(at | spans | shares | idle)
    return made(tmp_path_factory.mktemp("papers"), *scenarios, tables=tables)


@pytest.mark.parametrize("claim", CLAIMS, ids=[claim.id for claim in CLAIMS])
def test_the_papers_matrix_has_what_every_test_of_a_claim_needs(claim: Claim, papers_runs: Evidence) -> None:
    [judged] = judge([claim], papers_runs)
    assert judged.can_be_judged == "yes"
    for each in judged.tests:
        assert each.pooled.found.repeats >= 3, each.test.statement
        # A baseline may be of another strategy.
        besides = (*OBSERVATION, "strategy") if each.test.kind == "efficiency" else OBSERVATION
        alike = [tuple(side.rest(besides) for side in one.sides) for one, _ in each.pooled.single]
        assert len(set(alike)) == len(alike), each.test.statement


def test_the_papers_matrix_judges_all_strategies_by_the_same_jobs(papers_runs: Evidence) -> None:
    judged = verdict_on("ddp_ds_scales", papers_runs)
    for each in judged.tests:
        sides = [one.sides[0] for one, _ in each.pooled.single]
        assert [(side["image_size"], side["dataset"], side["devices"]) for side in sides] == [
            (300, "mnist", devices) for devices in (2, 3, 4)
        ]
