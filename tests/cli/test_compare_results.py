"""`multicard compare` of copies of a real run, slower by a known factor (synthetic): told from traces, and judged."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml

from conftest import ROOT, ran
from console import multicard
from multicard.api.results import holds_results
from multicard.share.pack import pack
from recorded_runs import add_run, experiment
from synthetic import kineto_trace

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


def compared(*arguments: object) -> subprocess.CompletedProcess[str]:
    """The command with a tolerance."""
    limit = [] if any(str(each).startswith("--fail-above") for each in arguments) else ["--fail-above", "3%"]
    return multicard("compare", *arguments, *limit)


def check(*arguments: object) -> tuple[int, str]:
    """Its exit code and what it finds."""
    done = compared(*arguments)
    return done.returncode, done.stdout


def test_results_and_archives_are_told_from_traces(
    recorded_results: Path, recorded_archive: Path, extracted_run: Path, tmp_path: Path
) -> None:
    assert holds_results(recorded_results)
    assert holds_results(recorded_archive)
    for trace in (extracted_run, extracted_run / "trace", kineto_trace(tmp_path / "a.json.gz"), tmp_path / "none"):
        assert not holds_results(trace)


def test_the_slower_configuration_is_one_line(baseline: Path, slower: Path) -> None:
    code, said = check(baseline, slower)
    last, first, *doubts = said.splitlines()
    assert code == 1
    [run] = {path.name.removesuffix("_r1") for path in baseline.glob("runs/*seed7*_r1")}
    # Logarithms of all four samples deviate by 0.002: log 1.1 plus and minus t × 0.002 × √(2/3), which is 9.5% with the
    # 4 degrees of freedom of one configuration, and 9.6% with the 8 of both.
    assert first.startswith(f"REGRESSION {run}: ")
    assert first.endswith(" ms, 10.0% slower (95% CI 9.6% to 10.4%, n=3)")
    assert any(each.startswith("in doubt: ") and "slower (--verbose lists them)" in each for each in doubts)
    assert last == "iteration time: 1 regression, 1 within the tolerance of 3% of 2 configurations"

    busy = f"\nin doubt: {slower} {run}_r3: disturbed: other processes: 1.5 CPUs"
    assert busy in check(baseline, slower, "--verbose")[1]

    code, said = check(baseline, slower, "--json")
    found = json.loads(said)
    assert code == 1
    changes = {each["configuration"]: each["change"]["value"] for each in found["changes"]}
    assert changes == pytest.approx({run: FACTOR - 1} | dict.fromkeys(changes.keys() - {run}, 0), abs=1e-9)


def test_an_archive_as_baseline_and_each_measure_that_is_asked_for(
    baseline: Path, slower: Path, tmp_path: Path
) -> None:
    pack(experiment(baseline, 3), tmp_path / "v1.tar.gz")  # of one of the configurations
    code, printed = check(tmp_path / "v1.tar.gz", slower, "--measure", "throughput,memory")
    assert code == 0
    assert f"1 configuration in {slower} only: " in printed
    for measure in ("throughput", "memory"):
        assert f"{measure}: 0 regressions, 1 within the tolerance of 3% of 1 configuration\n" in printed
    assert "differs: " not in printed, "a real run's machine and versions are those of its archive"


def test_without_tolerance_differences_are_listed(
    baseline: Path, slower: Path, extracted_run: Path, tmp_path: Path
) -> None:
    lines = multicard("compare", baseline, slower).stdout.splitlines()
    assert lines[0] == "iteration time: 1 worse, 1 undecided of 2 configurations"
    assert any(line.startswith("worse ") and "10.0% slower (95%" in line for line in lines)
    evil = "[red]x\x1b[31m"
    other = results(extracted_run, tmp_path, change=lambda record: record["versions"].update(torch=evil), repeats=2)
    shown = multicard("compare", baseline, other).stdout
    assert "no difference shown: iteration time" in shown and "[red]x�[31m" in shown and "\x1b" not in shown


def test_each_of_several_results_is_compared_with_the_one_before(baseline: Path, slower: Path, tmp_path: Path) -> None:
    code, said = check(baseline, slower, baseline, "--junit", tmp_path / "found.xml")
    pairs = [f"{baseline} → {slower}", f"{slower} → {baseline}"]
    assert (code, [line for line in said.splitlines() if line in pairs]) == (1, pairs)
    first, second = ElementTree.parse(tmp_path / "found.xml").getroot()
    assert [first.get("name"), second.get("name")] == pairs
    told = [[part.tag for case in suite for part in case] for suite in (first, second)]
    assert told == [["failure"], []]  # slower, then faster
    assert all(len(suite) == 2 for suite in (first, second))


def test_a_junit_file_is_replaced_if_this_command_wrote_it(baseline: Path, slower: Path, tmp_path: Path) -> None:
    file = tmp_path / "found.xml"
    check(baseline, slower, "--junit", file)
    check(slower, baseline, "--junit", file)
    [suite] = ElementTree.parse(file).getroot()
    assert suite.get("name") == f"{slower} → {baseline}"
    others = '<?xml version="1.0"?><testsuites name="pytest tests"/>'
    file.write_text(others)
    done = compared(slower, baseline, "--junit", file)
    refusal = f"--junit: {file} exists, expected a new name; delete it, or state another one\n"
    assert (done.returncode, done.stderr, file.read_text()) == (1, refusal, others)


def test_of_results_that_are_compared_with_themselves_a_doubt_is_one_line(slower: Path) -> None:
    printed = check(slower, slower, "--verbose")[1]
    doubts = [line for line in printed.splitlines() if line.startswith("in doubt: ")]
    assert doubts and len(doubts) == len(set(doubts))


def test_what_cannot_be_told_has_a_code_of_its_own(extracted_run: Path, tmp_path: Path) -> None:
    def other(record: dict[str, Any]) -> None:
        record["hardware"]["processor"] = "another"

    def said(*arguments: object, code: int = 2) -> list[str]:
        done = compared(*arguments)
        assert done.returncode == code
        return done.stderr.splitlines()

    old = results(extracted_run, tmp_path / "old", repeats=2)
    one = results(extracted_run, tmp_path / "one", repeats=1)
    unlike = results(extracted_run, tmp_path / "unlike", change=other, repeats=2)
    apart = results(extracted_run, tmp_path / "apart", repeats=1, seed=9)
    interval = "cannot tell: no configuration has an interval for "
    assert said(old, one) == [f"{interval}iteration_time"]
    assert said(old, old, "--measure", "energy,iteration_time") == [f"{interval}energy"]
    [line] = said(old, unlike)
    assert line.startswith("cannot tell: measured on different hardware (processor: ")
    assert compared(old, unlike).stdout.startswith("iteration time: 1 of 1 configuration cannot be judged\n")
    assert "differs: processor: " in multicard("compare", old, unlike).stdout
    none, missing = said(old, apart)
    assert none.startswith("cannot tell: no configuration that completed")
    assert missing.startswith("1 configuration of the baseline not in the new results: ")
    for arguments, line in (
        ([old, tmp_path / "none"], f"{tmp_path / 'none'}: expected results as in "),
        ([old, old, "--fail-above=3"], "--fail-above: found '3', expected a percentage"),
        ([old, old, "--fail-above=100%"], "--fail-above: found '100%', expected a percentage"),
        ([old, old, "--measure", "speed"], "--measure: found 'speed', expected some of "),
    ):
        [found] = said(*arguments, code=1)  # an error, not an answer
        assert found.startswith(line)
    (tmp_path / "x.tar.gz").write_bytes(b"no")
    assert "x.tar.gz: not an archive of multicard" in said(old, tmp_path / "x.tar.gz", code=1)[0]


def test_a_damaged_file_is_named(extracted_run: Path, tmp_path: Path) -> None:
    whole = add_run(extracted_run, tmp_path / "whole")
    path = Path(shutil.copytree(tmp_path / "whole", tmp_path / "bad")) / "runs" / whole.name / "run.json"
    path.write_text("{}")
    [line] = multicard("compare", tmp_path / "whole", tmp_path / "bad").stderr.splitlines()
    assert line.startswith(f"{path}: not the record of a run: parameters: missing")


@pytest.mark.rare
def test_the_github_action_says_what_became_slower_and_what_cannot_be_told(
    baseline: Path, slower: Path, extracted_run: Path, tmp_path: Path
) -> None:
    action = yaml.safe_load((ROOT / ".github/actions/compare/action.yml").read_text())
    install, judge = action["runs"]["steps"]
    given = {"baseline": baseline, "results": slower, "fail-above": "3%", "cannot-tell": "fail", "junit": "speed.xml"}
    assert set(given) == set(action["inputs"])
    stated = {name: re.sub(r"\$\{\{ inputs\.([\w-]+) \}\}", lambda found: str(given[found[1]]), value)
              for name, value in judge["env"].items()}  # fmt: skip
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    around = os.environ | {"PATH": path, "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md")}

    def step(script: str, **variables: str) -> subprocess.CompletedProcess[str]:
        shell = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script]  # as GitHub's runner starts bash
        return ran(*shell, cwd=tmp_path, env=around | variables)

    assert step(install["run"]).returncode == 0
    found = step(judge["run"], **stated)
    assert found.returncode == 1 and "REGRESSION" in found.stdout
    assert (tmp_path / "summary.md").read_text() == f"```text\n{found.stdout}```\n"
    assert {path.name for path in tmp_path.iterdir()} == {"summary.md", "speed.xml"}
    assert step(judge["run"], **stated | {"RESULTS": str(baseline)}).returncode == 0

    one = results(extracted_run, results(extracted_run, tmp_path / "one", repeats=1), repeats=1, seed=7)
    stated["RESULTS"] = str(one)
    assert step(judge["run"], **stated).returncode == 2
    let_through = step(judge["run"], **stated | {"CANNOT_TELL": "pass"})
    assert let_through.returncode == 0 and "::warning::multicard compare cannot tell" in let_through.stdout
    assert step(judge["run"], **stated | {"CANNOT_TELL": "pass", "RESULTS": str(slower)}).returncode == 1
    assert step(judge["run"], **stated | {"CANNOT_TELL": "maybe"}).returncode == 1
