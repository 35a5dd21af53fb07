"""`multicard compare` of copies of a real run, slower by a known factor (synthetic): judged, and over versions."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from multicard.archive.pack import pack
from multicard.cli import main
from recorded_runs import add_run, experiment

pytestmark = pytest.mark.slow

SPREAD = (1.0, 1.002, 0.998)
FACTOR = 1.1


def results(
    source: Path,
    folder: Path,
    times: float = 1,
    change: Callable[[dict[str, Any]], object] = lambda record: None,
    repeats: int = 3,
    **keys: Any,
) -> Path:
    for repeat, own in enumerate(SPREAD[:repeats], start=1):
        add_run(source, folder, times * own, change, repeat=repeat, **keys)
    return folder


@pytest.fixture(scope="module")
def baseline(extracted_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two configurations, three repeats each."""
    folder = tmp_path_factory.mktemp("check") / "baseline"
    return results(extracted_run, results(extracted_run, folder), seed=7)


@pytest.fixture(scope="module")
def slower(extracted_run: Path, baseline: Path) -> Path:
    """The second configuration slower by the known factor, on a machine that was busy in its last repeat."""

    def busy(record: dict[str, Any]) -> None:
        if record["parameters"]["repeat"] == 3:
            record["conditions"] = [{"others_cpu_s": 30.0, "stolen_cpu_s": 0.0, "wall_s": 20.0}]

    return results(extracted_run, results(extracted_run, baseline.with_name("slower")), FACTOR, busy, seed=7)


def check(*arguments: object) -> int:
    """Exit code of the command."""
    limit = [] if any(str(each).startswith("--fail-above") for each in arguments) else ["--fail-above", "3%"]
    try:
        main(["compare", *map(str, arguments), *limit])
    except SystemExit as stopped:
        return stopped.code
    return 0


def test_the_slower_configuration_is_one_line(
    baseline: Path, slower: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check(baseline, slower, "--junit", tmp_path / "found.xml") == 1
    last, first, *doubts = capsys.readouterr().out.splitlines()
    [run] = {path.name.removesuffix("_r1") for path in baseline.glob("runs/*seed7*_r1")}
    # Logarithms of all four samples deviate by 0.002: log 1.1 plus and minus t × 0.002 × √(2/3), which is 9.5% with the
    # 4 degrees of freedom of one configuration, and 9.6% with the 8 of both.
    assert first.startswith(f"REGRESSION {run}: ")
    assert first.endswith(" ms, 10.0% slower (95% CI 9.6% to 10.4%, n=3)")
    assert any(each.startswith("in doubt: ") and " runs of slower (--verbose lists them)" in each for each in doubts)
    assert last == "iteration time: 1 regression, 1 within the tolerance of 3% of 2 configurations"

    suite = ElementTree.parse(tmp_path / "found.xml").getroot()
    assert {name: suite.get(name) for name in ("tests", "failures", "errors", "skipped")} == {
        "tests": "2", "failures": "1", "errors": "0", "skipped": "0"
    }  # fmt: skip
    [failure] = suite.iter("failure")
    assert failure.get("message") == first

    check(baseline, slower, "--verbose")
    busy = f"in doubt: slower {run}_r3: disturbed: other processes: 1.5 CPUs"
    assert any(each.startswith(busy) for each in capsys.readouterr().out.splitlines())

    assert check(baseline, slower, "--json") == 1
    found = json.loads(capsys.readouterr().out)
    changes = {each["configuration"]: each["change"]["value"] for each in found["changes"]}
    assert changes == pytest.approx({run: FACTOR - 1} | dict.fromkeys(changes.keys() - {run}, 0), abs=1e-9)


def test_a_change_within_the_tolerance_and_an_archive_as_baseline(
    baseline: Path, slower: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check(slower, baseline) == 0  # faster
    assert check(baseline, slower, "--fail-above", "10%", "--measure", "throughput") == 0  # less by 1 - 1 / 1.1
    assert "0 regressions, 2 within the tolerance of 10% of 2 configurations" in capsys.readouterr().out
    pack(experiment(baseline, 3), tmp_path / "v1.tar.gz")  # of one of the configurations
    assert check(tmp_path / "v1.tar.gz", slower, "--measure", "throughput,memory") == 0
    assert "1 configuration in slower only: " in capsys.readouterr().out


def test_runs_that_end_otherwise_are_a_regression(
    extracted_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def lost(record: dict[str, Any]) -> None:
        record["outcome"] = "out_of_memory"

    old = results(extracted_run, results(extracted_run, tmp_path / "old", repeats=2), repeats=2, seed=7)
    new = results(extracted_run, results(extracted_run, tmp_path, change=lost, repeats=2), repeats=2, seed=7)
    assert check(old, new) == 1
    assert ": out_of_memory in 2 of 2 runs; 2 completed before\n" in capsys.readouterr().out
    assert check(new, old) == 0
    assert ": completed for the first time\n" in capsys.readouterr().out


def test_what_cannot_be_told_has_a_code_of_its_own(
    extracted_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def other(record: dict[str, Any]) -> None:
        record["hardware"]["processor"] = "another"

    def said(*arguments: object) -> list[str]:
        assert check(*arguments) == 2
        return capsys.readouterr().err.splitlines()

    old = results(extracted_run, tmp_path / "old", repeats=2)
    one = results(extracted_run, tmp_path / "one", repeats=1)
    unlike = results(extracted_run, tmp_path / "unlike", change=other, repeats=2)
    apart = results(extracted_run, tmp_path / "apart", repeats=1, seed=9)
    interval = "cannot tell: no configuration has an interval of "
    nothing = "cannot tell: no configuration that completed"
    assert said(old, one) == [f"{interval}iteration_time"]
    assert said(old, old, "--measure", "energy,iteration_time") == [f"{interval}energy"]
    [unlike_hardware] = said(old, unlike, "--junit", tmp_path / "unlike.xml")
    [problem] = ElementTree.parse(tmp_path / "unlike.xml").getroot().iter("error")
    assert problem.get("message") == unlike_hardware
    assert "accept it with --allow-other-machine" in unlike_hardware
    assert check(old, unlike, "--allow-other-machine") == 0
    assert "differs: processor: " in capsys.readouterr().out
    none, missing = said(old, apart)
    assert none.startswith(nothing)
    assert missing.startswith("1 configuration of the baseline not in the new results: ")
    assert [line.startswith(nothing) for line in said(old, apart, "--allow-missing")] == [True]
    for arguments, line in (
        ([old, tmp_path / "none"], f"{tmp_path / 'none'}: expected results as in "),
        ([old, old, "--fail-above=3"], "--fail-above: found '3', expected a percentage"),
        ([old, old, "--fail-above=100%"], "--fail-above: found '100%', expected a percentage"),
        ([old, old, "--junit", old], f"--junit: cannot write to {old}: {old} is a folder"),
        ([old, old, "--measure", "speed"], "--measure: found 'speed', expected some of "),
    ):
        [found] = said(*arguments)
        assert found.startswith(line)


def test_of_three_versions_each_line_says_between_which_and_only_the_last_one_fails(
    extracted_run: Path, baseline: Path, slower: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    again = results(extracted_run, results(extracted_run, tmp_path / "again"), seed=7)
    assert check(baseline, again, slower) == 1
    assert capsys.readouterr().out.splitlines()[1].startswith("again to slower: REGRESSION ")
    assert check(baseline, slower, again) == 0
    assert capsys.readouterr().out.splitlines()[1].startswith("baseline to slower: REGRESSION ")


def test_faulty_command_lines_are_one_line(baseline: Path) -> None:
    for arguments in (
        [baseline],
        [baseline, baseline, "--measure", "speed"],
        [baseline, baseline, "--junit", "x.xml"],
    ):
        with pytest.raises(SystemExit) as stopped:
            main(["compare", *map(str, arguments)])
        assert len(str(stopped.value).splitlines()) == 1
