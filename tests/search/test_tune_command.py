"""`multicard tune`: what it searches and leaves out, what it lets Snakemake make, and what it says."""

import copy
import re
from dataclasses import replace
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pandas as pd
import pytest
import yaml

from conftest import TINY, refusal
from multicard.cli import main, tune
from multicard.config.load import check
from multicard.config.runs import expand_scenario
from multicard.programs import PROGRAMS
from multicard.programs.program import Resources
from multicard.search.scenario import RunResult, ScenarioSpace

CONFIG: dict[str, Any] = {
    "results": "results",
    "fixed": TINY,
    "scenarios": {
        "formats": {
            "question": "Which is the fastest?",
            "vary": {"layout": ["nchw", "nhwc"], "fused_optimizer": [False, True], "threads": [1, 2]},
            "repeats": 2,
            "figures": ["step_breakdown"],
        }
    },
}
SPEED = {("nchw", False): 100.0, ("nchw", True): 110.0, ("nhwc", False): 150.0, ("nhwc", True): 200.0}


def changed(**scenario: Any) -> dict[str, Any]:
    config = copy.deepcopy(CONFIG)
    config["scenarios"]["formats"] |= scenario
    return config


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a configuration whose runs are not made but known, by `SPEED`; none fits with two threads."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(CONFIG))
    made: list[list[str]] = []

    def make(_config: Path, _profile: Path | None, targets: list[str]) -> bool:
        made.append(targets)
        for target in map(Path, targets):
            target.parent.mkdir(parents=True, exist_ok=True)
            target.touch()
            (target.parents[1] / "run.json").touch()
        return True

    def result(_space: ScenarioSpace, run: Any) -> RunResult:
        p = run.parameters
        if p.threads == 2:
            return RunResult(None, "out_of_memory", 5.0, False)
        return RunResult(SPEED[p.layout, p.fused_optimizer] + p.repeat, "completed", 60.0, False)

    monkeypatch.setattr("multicard.cli._pipeline.run_pipeline", make)
    monkeypatch.setattr(ScenarioSpace, "result", result)
    monkeypatch.setattr("multicard.cli.run.check_start", lambda *_: None)
    monkeypatch.setattr("multicard.programs.machine.usable_cpus", lambda: 8)
    monkeypatch.made = made
    return tmp_path


def refused(*arguments: str) -> str:
    return refusal(lambda: main(["tune", *arguments]), SystemExit)


@pytest.mark.slow
def test_the_best_configuration_is_told_with_its_interval_and_as_it_is_stated(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["tune", "config.yaml", "--budget", "1h"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "formats: 8 configurations, 2 repeats of each; goal: highest throughput_samples_per_s"
    [best] = [line for line in lines if line.startswith("best: ")]
    assert "layout: nhwc" in best and "fused_optimizer: true" in best and "threads: 1" in best
    # The geometric mean of 201 and 202.
    assert re.search(r": 201\.5 samples/s \(95% CI [\d.]+ samples/s to [\d.]+ samples/s, n = 2\)$", best)
    at = lines.index("to use it, set under fixed:")
    assert yaml.safe_load("\n".join(lines[at + 1 : -1])) == {"layout": "nhwc", "fused_optimizer": True, "threads": 1}
    table = pd.read_csv("results/search/formats.csv")
    assert table["spent_s"].iloc[-1] == table["cost_s"].sum()
    assert set(table.loc[table["threads"] == 2, "outcome"]) == {"out_of_memory"}
    assert Path("results/search/formats.png").stat().st_size > 0
    made = [target for targets in monkeypatch.made for target in targets]
    assert sorted(made) == sorted(f"results/runs/{run}/activity/tables.json" for run in table["run"])

    monkeypatch.made.clear()
    main(["tune", "config.yaml", "--budget", "1h"])  # started again, it goes the same way without a run
    again = capsys.readouterr().out.splitlines()
    assert again == lines
    assert [sorted(targets) for targets in monkeypatch.made] == [sorted(made)]  # to see whether they are up to date


def test_what_is_left_out_is_not_begun_with(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        ScenarioSpace,
        "left_out",
        lambda space: {key: "too much" for key in space.repeats if space.values(key)["threads"] == 2},
    )
    main(["tune", "config.yaml", "--budget", "90min", "--dry-run"])
    lines = capsys.readouterr().out.splitlines()
    assert "left out 4 of 8: too much" in lines and not [line for line in lines if "threads: 2" in line]
    assert [line.strip() for line in lines if "threads: 1" in line] and "starts with:" in lines
    # A dry run runs nothing.
    assert monkeypatch.made == []
    assert [path.name for path in folder.iterdir()] == ["config.yaml"]


@pytest.mark.slow
def test_a_configuration_of_which_a_repeat_failed_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def result(_space: ScenarioSpace, run: Any) -> RunResult:
        p = run.parameters
        lost = p.layout == "nhwc" and p.repeat == 2
        return RunResult(None if lost else SPEED[p.layout, False], "timed_out" if lost else "completed", 60.0, False)

    monkeypatch.setattr(ScenarioSpace, "result", result)
    Path("config.yaml").write_text(yaml.safe_dump(changed(vary={"layout": ["nchw", "nhwc"]})))
    main(["tune", "config.yaml", "--budget", "1h"])
    lines = capsys.readouterr().out.splitlines()
    assert "skipped, since a repeat did not complete: layout: nhwc" in lines
    assert [line for line in lines if line.endswith("4 runs of 2 configurations in 240 s, all that there are")]
    assert [line for line in lines if line.startswith("best: layout: nchw: ")]


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--budget", "0h"], "--budget: found '0h', expected a duration such as 6h, 90min, 2h30m or 45s"),
        (["--budget", "1h", "--scenario", "none"], "--scenario: found none, expected one of formats"),
    ],
)
def test_bad_input_is_refused(folder: Path, arguments: list[str], line: str) -> None:
    assert refused("config.yaml", *arguments) == line


def test_a_scenario_that_cannot_be_searched_is_refused_before_anything_runs(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("config.yaml").write_text(yaml.safe_dump(changed(vary={"layout": ["nhwc"]})))
    assert refused("config.yaml", "--budget", "1h").startswith("scenarios.formats: varies nothing, expected several")
    assert monkeypatch.made == []


def test_without_optuna_or_with_another_major_version_it_names_the_extra(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tune.importlib.metadata, "version", Mock(return_value="4.9.0"))
    assert refused("config.yaml", "--budget", "1h").endswith(
        'found optuna 4.9.0, expected optuna 5.x: pip install "multicard[search]"'
    )
    monkeypatch.setattr(tune.importlib.metadata, "version", Mock(side_effect=PackageNotFoundError))
    assert refused("config.yaml", "--budget", "1h").endswith('needs optuna: pip install "multicard[search]"')


def space(config: dict[str, Any]) -> ScenarioSpace:
    return ScenarioSpace(check(config, "test"), "formats", "throughput")


def test_what_cannot_run_or_does_not_fit_by_its_estimate_is_left_out(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Of vision runs there is no estimate.
    estimate = lambda p, _inputs: Resources(device_memory_bytes=p.batch_size * 1_000_000)  # noqa: E731
    monkeypatch.setitem(PROGRAMS, "vision", replace(PROGRAMS["vision"], resources=estimate))
    fixed = {"device": "cuda", "image_size": 224, "width_mult": 1.0, "strategy": "ddp-ds"}
    config = changed(fixed=fixed, vary={"devices": [1, 4], "batch_size": [8, 100_000]})
    config["cluster"] = {"cpus_per_node": 64, "gpus_per_node": 2, "gpu_memory_gb": 80}
    config["datasets"] = {"digits": {"source": "synthetic", "samples": 1_000_000, "classes": 10}}  # more than a step
    planned = space(config)
    assert planned.learning_differences == ["global batch size"]
    reasons = {tuple(planned.values(key).items()): why for key, why in planned.left_out().items()}
    assert (("devices", 1), ("batch_size", 8)) not in reasons
    assert reasons[("devices", 1), ("batch_size", 100_000)] == "memory estimate above that of a GPU"
    assert reasons[("devices", 4), ("batch_size", 8)] == "needs 4 devices, 2 found"


BATCHES = CONFIG | {"fixed": TINY | {"batch_size": 24, "device": "cpu"}}


@pytest.fixture
def batches(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder with runs that fit up to a batch of 100, in 0.1 s and 0.01 s for each sample."""
    config = BATCHES | {"scenarios": {"formats": CONFIG["scenarios"]["formats"] | {"vary": {"layout": ["nchw"]}}}}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))

    def result(_space: ScenarioSpace, run: Any) -> RunResult:
        size = run.parameters.batch_size
        if size > 100:
            return RunResult(None, "out_of_memory", 5.0, False)
        rate = size / (0.1 + 0.01 * size) * (1 + 0.001 * run.parameters.repeat)
        return RunResult(rate, "completed", 60.0, False, size * 1e7)

    monkeypatch.setattr(ScenarioSpace, "result", result)
    monkeypatch.setattr(ScenarioSpace, "on_gpus", True)
    return folder


def test_the_largest_batch_and_the_one_that_pays_are_told_and_their_runs_are_kept(
    batches: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["tune", "config.yaml", "--budget", "2h", "--vary", "batch-size=auto", "--largest", "2000"]
    main([*asked, "--dry-run"])
    assert "batch_size: 24" in capsys.readouterr().out and not (batches / "results").exists()

    main(asked)
    lines = capsys.readouterr().out.splitlines()
    # The digits have 1797 pictures, of which 1438 are for training.
    assert [line for line in lines if "training samples per rank, found 1438; set batch_size: " in line]
    # Doublings of 24, and eighths of 96: 108 is the next.
    assert "largest batch that fits: 96 (960 MB); 108 ran out of memory" in lines
    # 1 / (1 + 10/b) of 96 is 0.906; within 3% of it, from 0.879 on, are steps from 73 to 96 which no doubling meets.
    assert "batch that pays: 96, the fastest" in lines
    [row] = [line for line in lines if line.startswith("  48: ")]
    # (1 + 10/96) / (1 + 10/48) = 0.914, and the three repeats of 96 differ by up to 1%.
    assert re.search(r"91\.[2-6]% of the fastest \(480 MB\)", row)
    at = lines.index("to use it, set under fixed:")
    assert yaml.safe_load("\n".join(lines[at + 1 : -1])) == {"batch_size": 96}
    assert len([line for line in lines if "learning rate" in line]) == 1

    table = pd.read_csv("results/search/formats-batch_size.csv")
    assert set(table.loc[table["batch_size"] > 100, "outcome"]) == {"out_of_memory"}
    stated = check(yaml.safe_load(Path("results/search/formats-batch_size.yaml").read_text()), "written")
    assert set(table["run"]) <= {run.id for run in expand_scenario(stated, "formats")}
    # They are the runs that a scenario with these values has.
    listed = check(changed(vary={"batch_size": [24, 96]}) | {"fixed": BATCHES["fixed"]}, "listed")
    first = {run.id for run in expand_scenario(listed, "formats") if run.parameters.repeat == 1}
    assert first <= set(table["run"])

    made = [target for targets in monkeypatch.made for target in targets]
    monkeypatch.made.clear()
    main(asked)
    assert capsys.readouterr().out.splitlines() == lines
    assert [sorted(targets) for targets in monkeypatch.made] == [sorted(made)]  # to see whether they are up to date


def test_a_budget_that_is_too_small_tells_what_was_found_so_far(
    batches: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["tune", "config.yaml", "--budget", "150s", "--vary", "batch_size=auto"])
    out = capsys.readouterr().out
    assert "no batch ran out of memory: 48 (480 MB) is the largest that ran; the budget is spent; next is 96" in out
    assert "batch that pays so far: 48, the fastest" in out


def test_another_failure_ends_the_search_with_one_line_after_what_was_found(
    batches: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = ScenarioSpace.result

    def result(space: ScenarioSpace, run: Any) -> RunResult:
        if run.parameters.batch_size > 40:
            return RunResult(None, "timed_out", 60.0, False, reason="no end after 1 min")
        return found(space, run)

    monkeypatch.setattr(ScenarioSpace, "result", result)
    line = refused("config.yaml", "--budget", "1h", "--vary", "batch_size=auto")
    assert line.startswith("batch_size: 48: timed out: no end after 1 min; see results/runs/")
    assert "is the largest that ran" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--vary", "layout=nchw,nhwc", "--vary", "batch_size=auto"], "scenarios.formats: varies layout too"),
        (["--vary", "batch_size=auto,8"], "--vary: auto is to be the only value"),
        (["--vary", "batch_size=auto", "--largest", "0"], "--largest: found 0, expected 1 or more"),
        (["--largest", "8"], "--largest: expected with --vary NAME=auto"),
        (
            ["--vary", "batch_size=auto", "--goal", "iteration_time"],
            "--goal: found iteration_time, expected throughput",
        ),
        (["--vary", "batch=auto"], "config.yaml with --vary: scenarios.formats.vary.batch"),
    ],
)
def test_what_cannot_be_varied_is_refused(batches: Path, arguments: list[str], line: str) -> None:
    assert refused("config.yaml", "--budget", "1h", *arguments).startswith(line)
    assert not (batches / "results").exists()


def test_other_values_are_searched_in_place_of_those_of_the_scenario(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["tune", "config.yaml", "--budget", "1h", "--vary", "threads=1", "--vary", "layout=nhwc", "--dry-run"])
    assert capsys.readouterr().out.splitlines()[0].startswith("formats: 2 configurations, 2 repeats of each")
