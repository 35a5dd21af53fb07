"""The names that the papers' claims use, and the matrix of the papers, which has the runs that decide the claims."""

import math
from pathlib import Path

import numpy as np
import pytest

from conftest import ROOT
from factories import Row, make_results, vision_runs, write_results
from multicard.config.load import read_experiment
from multicard.config.runs import expand
from multicard.core.errors import UserError
from multicard.papers.claim import Claim
from multicard.papers.claim_tests import Compared, Efficiency, RelativeScaling
from multicard.papers.conditions import Where
from multicard.papers.judge import judge
from multicard.papers.tables import BOTH_PAPERS
from multicard.programs import PROGRAMS
from multicard.programs.machine import Machine
from multicard.results.configuration import OBSERVATION
from multicard.results.measure import MEASURES_OF
from multicard.results.results import Results


def check_names(workload: str, where: Where) -> None:
    """Fail if the workload has no parameter or measure of a name."""
    assert where.keys() <= {*PROGRAMS[workload].parameters.model_fields, *MEASURES_OF[workload], "data_source"}


@pytest.mark.parametrize("claim", BOTH_PAPERS, ids=[claim.id for claim in BOTH_PAPERS])
def test_a_claim_names_workloads_and_their_parameters_and_measures(claim: Claim) -> None:
    for size in claim.size:
        check_names(str(size["workload"]), size)
    for test in claim.tests:
        workload = str(test.where["workload"])
        check_names(workload, test.where)
        assert math.isfinite(test.above) or math.isfinite(test.below)
        if isinstance(test, Compared):
            check_names(workload, {**test.variant, **test.baseline, **dict.fromkeys(test.may_differ)})
            assert test.measure in MEASURES_OF[workload]
        elif isinstance(test, RelativeScaling):
            check_names(str(test.than["workload"]), test.than)
        elif isinstance(test, Efficiency):
            assert {*test.strategies} <= {*PROGRAMS[workload].methods}


def test_a_damaged_measures_file_is_named(tmp_path: Path) -> None:
    results = write_results(tmp_path, vision_runs(100))
    (results / "scenarios" / "s0" / "measures.csv").write_text("run,outcome\nx,completed\n")
    with pytest.raises(UserError, match=r"measures\.csv: found no column workload"):
        Results.read(results)


@pytest.fixture(scope="module")
def papers_runs(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """All runs of the papers' configurations that a machine could run, with numbers that are equal but for 0.1%."""
    machine, random = Machine.here().hypothetical(), np.random.default_rng(1)
    scenarios: list[list[Row]] = []
    tables: dict[str, list[Row]] = {"cuda_api": [], "epochs": []}
    for config in ("paper-vision", "paper-llm"):
        for runs in expand(read_experiment(ROOT / "config" / f"{config}.yaml", outside=False)).values():
            start = sum(map(len, scenarios))
            scenarios.append([])
            for run in runs:
                if run.unsupported_reason(machine) is not None:
                    continue
                at = {"at": start + len(scenarios[-1])}
                speeds = ("throughput_samples_per_s", "processed_samples_per_s", "tokens_per_s", "iteration_time_s")
                scatter = float(np.exp(random.normal(0, 0.001)))
                measures = dict.fromkeys(speeds, scatter) | dict.fromkeys(("test_accuracy", "peak_memory_bytes"), 1.0)
                shares = dict.fromkeys(("data_share", "profiler_overhead"), 0.02 * scatter)
                measures |= shares | {"parameters": 8_030_000_000}
                scenarios[-1].append(run.parameters.model_dump() | measures)
                calls = {"cudaLaunchKernel": 9 * scatter, "cudaFree": 1.0}
                for function, total_s in calls.items():
                    tables["cuda_api"].append(at | {"api": "runtime", "function": function, "total_s": total_s})
                tables["epochs"].append(at | {"epoch": 1, "test_accuracy": 0.99})
    return make_results(tmp_path_factory.mktemp("papers"), *scenarios, tables=tables)


@pytest.mark.slow
@pytest.mark.parametrize("claim", BOTH_PAPERS, ids=[claim.id for claim in BOTH_PAPERS])
def test_the_papers_matrix_has_what_every_test_of_a_claim_needs(claim: Claim, papers_runs: Results) -> None:
    [judged] = judge([claim], papers_runs)
    assert judged.can_be_judged == "yes"
    for each in judged.tests:
        assert each.pooled.repeats >= 3, each.test.statement
        # A baseline may be of another strategy.
        besides = (*OBSERVATION, "strategy") if isinstance(each.test, Efficiency) else OBSERVATION
        alike = [tuple(side.rest(besides) for side in one.sides) for one in each.comparisons]
        assert len(set(alike)) == len(alike), each.test.statement
