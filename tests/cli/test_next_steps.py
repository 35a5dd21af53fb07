"""Every command that multicard prints to go on with works as it is printed, whatever files are called."""

import ast
import json
import re
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

import multicard
from conftest import TINY, refusal
from factories import vision_runs, write_results
from multicard.cli import main
from multicard.cli._overview import print_results
from multicard.config.load import read_experiment
from multicard.machine.doctor import examine

CONFIG = Path("mein versuch.yaml")
SCALE = ("scale", "--device", "cpu", "--config-out", str(CONFIG), "--devices", "1")
SCRIPT = ("--", "train.py")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a script, and spaces in its name."""
    folder = tmp_path / "my own"
    folder.mkdir()
    monkeypatch.chdir(folder)
    Path("train.py").touch()
    return folder


def commands_in(text: str) -> list[str]:
    """The command at the end of each line that has one there."""
    return re.findall(r": (multicard \w+ .*)$", text, re.M)


def pasted(command: str, *options: str) -> None:
    """Run a command as a shell would take it; what it trains is left out by `options`."""
    program, *arguments = shlex.split(command)
    assert program == "multicard"
    main([*arguments, *options])


def experiment(repeats: Any) -> dict[str, Any]:
    scenario = {"question": "?", "fixed": TINY, "vary": {"seed": [0, 1]}, "figures": ["step_breakdown"]}
    return {"scenarios": {"a": scenario | {"repeats": repeats}}}


def concluded(
    repeats: Any,
    *rows: dict[str, Any],
    capsys: pytest.CaptureFixture[str],
    write: Callable[[Any], str] = yaml.safe_dump,
    profile: str | None = None,
) -> str:
    """What is printed last of a finished experiment with these runs."""
    CONFIG.write_text(write(experiment(repeats)))
    found = read_experiment(CONFIG)
    write_results(Path(found.results), rows)
    (Path(found.results) / "scenarios/s0").rename(Path(found.results) / "scenarios/a")
    print_results(found, CONFIG, profile=profile)
    return capsys.readouterr().out.splitlines()[-1]


def test_the_next_step_of_a_finished_experiment_can_be_pasted_into_a_shell(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = concluded(1, *vision_runs(100.0, devices=1, strategy="ddp")[:1], capsys=capsys)
    [change, again] = said.partition(": ")[2].split(" && ")
    subprocess.run(["bash", "-c", change], check=True)
    pasted(again, "--dry-run")
    # Two seeds, now three times each.
    assert "6 runs: 6 would run" in capsys.readouterr().out


def test_the_next_step_where_no_line_of_the_file_states_the_repeats(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = vision_runs(100.0, devices=1, strategy="ddp")[0]
    said = concluded(1, run, capsys=capsys, write=json.dumps)
    assert "set repeats: 3 in mein versuch.yaml" in said
    CONFIG.write_text(yaml.safe_dump(experiment(3)))
    [command] = commands_in(said)
    pasted(command, "--dry-run")
    assert "6 runs: 6 would run" in capsys.readouterr().out


def test_the_next_step_where_repeats_may_be_added(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As after Snakemake alone, which adds none."""
    until_decided = {"until": "5%", "least": 2, "most": 6}
    said = concluded(until_decided, *vision_runs(100.0, devices=1, strategy="ddp")[:2], capsys=capsys)
    assert said.startswith("next, to add repeats until comparisons are decided: ")
    [command] = commands_in(said)
    pasted(command, "--dry-run")
    assert "until decided: 4 to 12 runs" in capsys.readouterr().out


@pytest.mark.parametrize("repeats", [1, {"until": "5%", "least": 2, "most": 6}])
def test_the_next_step_of_what_ran_on_a_cluster_goes_on_there(
    repeats: Any, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = vision_runs(100.0, devices=1, strategy="ddp")[0]
    said = concluded(repeats, run, capsys=capsys, profile="my profile")
    assert said.endswith("multicard run 'mein versuch.yaml' --profile 'my profile'")


def test_the_next_step_after_failures(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    [run] = vision_runs(100.0, devices=1, strategy="ddp")[:1]
    lost = dict.fromkeys(name for name in run if name.endswith("_s"))
    said = concluded(1, run | lost | {"outcome": "failed"}, capsys=capsys)
    [command] = commands_in(said)
    assert command.endswith(" --retry-failed")
    pasted(command, "--dry-run")
    assert "2 runs: 2 would run" in capsys.readouterr().out


def test_the_next_step_where_there_are_repeats(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = concluded(3, *vision_runs(100.0, devices=1, strategy="ddp"), capsys=capsys)
    [command] = commands_in(said)
    assert command == "multicard recommend results-mein-versuch"
    pasted(command)
    assert "How sure: 3 repeats" in capsys.readouterr().out


def test_details_are_named_where_they_are_not_the_next_step(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = {"iteration_time_s": 0.1, "devices": 1, "strategy": "ddp"}
    concluded(1, *vision_runs(100.0, **run)[:1], capsys=capsys)
    print_results(read_experiment(CONFIG), CONFIG)
    [details] = commands_in(capsys.readouterr().out)
    assert details == "multicard recommend results-mein-versuch"
    pasted(details)
    assert "How sure: 1 repeat" in capsys.readouterr().out


def test_the_next_step_of_a_file_that_was_only_written(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main([*SCALE, "--write-only", "--python", sys.executable, *SCRIPT])
    here, on_cluster = commands_in(capsys.readouterr().out)
    pasted(here, "--dry-run")
    assert "1 run: 1 would run" in capsys.readouterr().out
    pasted(on_cluster, "--dry-run")
    assert "1 run: 1 would run" in capsys.readouterr().out


def test_a_file_that_differs_can_be_run_as_it_is(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("multicard.cli.run.run_and_print", lambda *_, **__: None)
    main([*SCALE, *SCRIPT])
    # As the next step has it: the file is edited, and the same command started once more.
    CONFIG.write_text(CONFIG.read_text().replace("repeats: 1", "repeats: 3"))
    capsys.readouterr()
    said = refusal(lambda: main([*SCALE, *SCRIPT]), SystemExit)
    [command] = commands_in(said)
    pasted(command, "--dry-run")
    assert "3 runs: 3 would run" in capsys.readouterr().out


def test_what_doctor_names_works(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stated = experiment(1)
    stated["scenarios"]["a"]["fixed"] = TINY | {"devices": 999, "strategy": "ddp"}
    CONFIG.write_text(yaml.safe_dump(stated))
    [runs] = [check for check in examine(CONFIG, None) if check.check == "runs"]
    pasted(runs.do.removesuffix(" lists each with its reason"))
    assert "needs 999 devices" in capsys.readouterr().out


# Calls that make such a line, by module: tests above try each, `tests/search` that of `tune`.
TRIED = Counter({"_overview": 6, "scale": 3, "tune": 1})
QUOTED = {"next_step", "command_line"}


def test_every_command_line_with_a_name_in_it_is_tried() -> None:
    """One that is made in another way may not be quoted."""
    package, found, unquoted = Path(multicard.__file__).parent, Counter(), []
    for path in package.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", None) in QUOTED and path.stem != "_next_step":
                found[path.stem] += 1
            if isinstance(node, ast.JoinedStr):
                text = "".join(part.value if isinstance(part, ast.Constant) else "\0" for part in node.values)
                values = [part for part in node.values if isinstance(part, ast.FormattedValue)]
                if re.search(r"multicard (run|recommend|status|report|archive|doctor) [^;:]*\0", text):
                    names = {getattr(part.value, "id", None) for part in values}
                    unquoted += [] if "named" in names or "CONFIG" in names else [f"{path.name}: {text!r}"]
    assert found == TRIED and unquoted == []
