"""How `multicard run` adds repeats until they decide, by a pipeline in this process whose runs take stated times."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from multicard.answers.outputs import write_scenario
from multicard.cli.run import print_runs, run_and_print
from multicard.config.added_repeats import AddedRepeats, read_added, write_added
from multicard.config.load import read_experiment
from multicard.config.plan import Plan
from script_runs import COMMAND, write_script_run

CONFIG = Path("mine.yaml")
VARY = {"args": {"batch_size": [32, 64], "amp": ["none"]}}
# How much longer than those with 64 samples the steps with 32 take per sample, by repeat: nothing is decided by the
# first two repeats at 5%, since their ratio is 0.9 and 1.1, nor ever at 0.001%.
FACTORS = (1.1, 0.9, 1.1, 0.9, 1.1, 0.9)


class FakePipeline:
    """Makes the runs of the planned experiment, and the tables of its scenarios; notes what was asked of it."""

    def __init__(self) -> None:
        self.starts: list[int] = []  # number of runs that each start made
        self.targets: list[Sequence[str]] = []
        self.earlier_runs: list[int] = []  # number of runs by earlier starts, as each start is told
        self.stops_at: int | None = None  # the start that makes nothing, as if it failed

    def __call__(
        self,
        config: Path,
        profile: Path | None = None,
        *,
        targets: Sequence[str] = (),
        earlier_runs: int = 0,
        **_: Any,
    ) -> bool:
        """Make what is missing; return False if this start is the one that makes nothing."""
        if self.stops_at == len(self.starts):
            return False
        plan = Plan.make(read_experiment(config, outside=False))
        results = Path(plan.experiment.results)
        made = 0
        for name, runs in plan.scenarios.items():
            for run in runs:
                p: Any = run.parameters
                if not (results / "runs" / run.id).exists():
                    slower = FACTORS[p.repeat - 1] if p.args["batch_size"] == 32 else 1.0
                    write_script_run(results, p, 0.001 * p.args["batch_size"] * slower, samples=p.args["batch_size"])
                    made += 1
            folders = [results / "runs" / run.id for run in runs]
            looks = plan.experiment.scenarios[name].repeats.looks
            write_scenario(folders, {}, results / "scenarios" / name, looks=looks)
        self.starts.append(made)
        self.earlier_runs.append(earlier_runs)
        self.targets.append(targets)
        return True


@pytest.fixture
def pipeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakePipeline:
    monkeypatch.chdir(tmp_path)
    fake = FakePipeline()
    monkeypatch.setattr("multicard.cli._pipeline.run_pipeline", fake)
    return fake


def stated(repeats: Any) -> Plan:
    fixed = {"workload": "script", "command": COMMAND, "device": "cpu"}
    scenario = {"question": "?", "fixed": fixed, "vary": VARY, "repeats": repeats, "figures": ["step_times"]}
    CONFIG.write_text(yaml.safe_dump({"scenarios": {"ours": scenario}, "results": "results"}))
    return planned()


def planned() -> Plan:
    return Plan.make(read_experiment(CONFIG, outside=False))


def test_blocks_are_added_to_the_most_where_nothing_is_decided(
    pipeline: FakePipeline, capsys: pytest.CaptureFixture[str]
) -> None:
    run_and_print(stated({"until": "0.001%", "least": 2, "most": 4}), CONFIG)
    # Two configurations: two repeats, one more, and the last one with all other files.
    assert pipeline.starts == [4, 2, 2]
    measures = ["results/scenarios/ours/measures.csv"]
    assert pipeline.targets == [measures, measures, ()]
    # The last start prints how many runs the command made.
    assert pipeline.earlier_runs == [0, 0, 6]
    assert read_added(Path("results")) == {"ours": AddedRepeats(repeats=4)}
    said = capsys.readouterr().out.splitlines()
    # Each run took a minute, by its record.
    assert said == [
        "ours: not decided after 2 repeats, one more of 4 at most, about 2 min (4 min for all)",
        "ours: not decided after 3 repeats, one more of 4 at most, about 2 min (2 min for all)",
    ]


def test_a_second_start_after_the_end_makes_nothing(pipeline: FakePipeline) -> None:
    run_and_print(stated({"until": "0.001%", "least": 2, "most": 3}), CONFIG)
    before = len(pipeline.starts)
    run_and_print(planned(), CONFIG)
    assert pipeline.starts[before:] == [0]


def test_no_block_is_added_where_the_least_repeats_decide(
    pipeline: FakePipeline, capsys: pytest.CaptureFixture[str]
) -> None:
    # The logarithms of 1.1 and 0.9 in turn have a standard error of 0.045, and t of six repeats is below 5 at the level
    # of each of seven looks (Bonferroni's is 4.5). So half the width of the interval is about a quarter.
    run_and_print(stated({"until": "99%", "least": 6, "most": 8}), CONFIG)
    assert pipeline.starts == [12, 0]
    assert read_added(Path("results")) == {"ours": AddedRepeats(repeats=6, decided=0.99)}
    assert capsys.readouterr().out == "ours: decided after 6 repeats\n"
    run_and_print(planned(), CONFIG)
    assert pipeline.starts == [12, 0, 0]


def test_a_second_start_goes_on_where_the_first_ended(pipeline: FakePipeline) -> None:
    pipeline.stops_at = 1
    plan = stated({"until": "0.001%", "least": 2, "most": 4})
    with pytest.raises(SystemExit):
        run_and_print(plan, CONFIG)
    assert pipeline.starts == [4] and read_added(Path("results")) == {"ours": AddedRepeats(repeats=3)}
    pipeline.stops_at = None
    run_and_print(planned(), CONFIG)
    assert pipeline.starts == [4, 2, 2]


def test_a_fixed_number_of_repeats_is_one_start(pipeline: FakePipeline) -> None:
    run_and_print(stated(2), CONFIG)
    assert pipeline.starts == [4] and not Path("results/repeats.json").exists()


def test_the_plan_says_the_least_and_the_most_runs_and_their_time(
    pipeline: FakePipeline, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = stated({"until": "5%", "least": 2, "most": 5})
    print_runs(plan, CONFIG)
    # By the time limit, an hour for each.
    assert "until decided: 4 to 10 runs, which the time limit ends within 4 to 10 h" in capsys.readouterr().out
    write_added(Path("results"), {"ours": AddedRepeats(repeats=3, decided=0.05)})
    print_runs(planned(), CONFIG)
    assert "until decided" not in capsys.readouterr().out
