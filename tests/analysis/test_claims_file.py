"""Files of claims and the matrix of the papers, which has the runs that decide them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from claim_worlds import CLAIMS

from conftest import ROOT, refusal
from factories import Row, make_results, vision_runs, write_results
from multicard.core.errors import UserError
from multicard.experiment.load import read_experiment
from multicard.experiment.machine import Machine
from multicard.experiment.runs import expand
from multicard.papers.claims import Claim, read_claims
from multicard.papers.judge import judge
from multicard.results.configuration import OBSERVATION
from multicard.results.results import Results


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("claims: 3", "expected a list"),
        ([{"id": "a"}], "0.claim: missing"),
        ({"colour": "red"}, "0.colour: unknown key"),
        ({"above": None}, "expected a limit"),
        ({"where": {"colour": 1}}, "'colour' is neither a parameter nor a measure"),
        ({"kind": "api_time", "functions": "("}, "valid regular expression"),
    ],
)
def test_a_faulty_claims_file_is_refused_by_a_line_that_names_the_key(content: Any, said: str, tmp_path: Path) -> None:
    test = {"statement": "s", "kind": "efficiency", "where": {}, "above": 1.0}
    claim = {"id": "a", "claim": "c", "paper": "A", "source": "s", "hardware": "gpu", "refuted_if": "r"}
    if isinstance(content, dict):
        in_test = {key: value for key, value in content.items() if key in ("above", "where", "kind", "functions")}
        content = [claim | {"tests": [test | in_test]} | {k: v for k, v in content.items() if k not in in_test}]
    path = tmp_path / "claims.yaml"
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    line = refusal(lambda: read_claims(path))
    assert line.startswith(f"{path}: ") and said in line


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
@pytest.mark.parametrize("claim", CLAIMS, ids=[claim.id for claim in CLAIMS])
def test_the_papers_matrix_has_what_every_test_of_a_claim_needs(claim: Claim, papers_runs: Results) -> None:
    [judged] = judge([claim], papers_runs)
    assert judged.can_be_judged == "yes"
    for each in judged.tests:
        assert each.pooled.repeats >= 3, each.test.statement
        # A baseline may be of another strategy.
        besides = (*OBSERVATION, "strategy") if each.test.kind == "efficiency" else OBSERVATION
        alike = [tuple(side.rest(besides) for side in one.sides) for one in each.comparisons]
        assert len(set(alike)) == len(alike), each.test.statement
