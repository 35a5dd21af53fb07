"""The workflow follows Snakemake's conventions, and can be used from another workflow."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

import forked_python
from conftest import ROOT, TINY
from multicard.config.load import read_experiment
from multicard.core.layout import machine_file
from multicard.core.prepared import folder_name
from multicard.programs.datasets import Digits

pytestmark = pytest.mark.slow

SCENARIO = {"question": "Does it run?", "fixed": TINY, "figures": ["step_breakdown"]}
OTHER = """\
configfile: "mine.yaml"

module profiling:
    snakefile: "{snakefile}"
    config: config

use rule * from profiling as profiling_*

rule mine:
    default_target: True
    input: "results-mine/report.html"
"""


def snakemake(folder: Path, *arguments: str) -> str:
    done = forked_python.snakemake(folder, "--cores", "1", *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_snakemake_s_linter_finds_nothing_but_that_rules_have_no_conda_environment() -> None:
    found = forked_python.snakemake(ROOT, "--cores", "1", "--lint")  # which ends with 1 where it finds any
    lints = set(re.findall(r"^ +\* (.+?):?$", found.stdout + found.stderr, re.M))
    assert lints <= {"Specify a conda environment or container for each rule."}, found.stdout + found.stderr


def repository(folder: Path) -> str:
    """The Snakefile in a Git repository, as Snakemake names one; `github(...)` goes the same way through Snakemake."""
    shutil.copytree(ROOT / "workflow", folder / "workflow", ignore=shutil.ignore_patterns("__pycache__"))
    git = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b"]
    for command in (["init", "-q", "-b", "main"], ["add", "."], ["commit", "-q", "-m", "all"]):
        subprocess.run([*git, *command], check=True)
    return f"git+file://{folder}/workflow/Snakefile@main"


@pytest.mark.parametrize("hosted", [False, True])
def test_another_workflow_uses_the_rules_as_a_module(tmp_path: Path, hosted: bool) -> None:
    snakefile = repository(tmp_path / "there") if hosted else str(ROOT / "workflow/Snakefile")
    (tmp_path / "Snakefile").write_text(OTHER.format(snakefile=snakefile))
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump({"time_limit_min": 7, "scenarios": {"a": SCENARIO}}))
    dry = snakemake(tmp_path, "--dry-run", "--printshellcmds")
    for rule in ("prepare_data", "launch_run", "extract_activity", "draw_figures", "write_report"):
        assert f"profiling_{rule} " in dry
    [_of_the_one_run] = re.findall("launch_run.py.* --time-limit-min 7 2> .*", dry, re.M)
    assert "measure_machine" not in dry  # only when asked for
    snakemake(tmp_path, "profiling_prepare")
    prepared = tmp_path / "data" / folder_name("digits", Digits(source="digits"))
    assert (prepared / "provenance.json").exists()


def test_the_snakefile_at_the_root_runs_everything_by_default() -> None:
    dry = snakemake(ROOT, "--configfile", "config/config.yaml", "--dry-run", "--forceall", "--quiet", "rules")
    jobs = dict(re.findall(r"^(\w+) +(\d+)$", dry, re.M))
    assert jobs["launch_run"] == "15" and jobs["write_report"] == "1"


def test_the_limits_of_this_machine_are_a_target(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump({"scenarios": {"a": SCENARIO}}))
    command = ("--snakefile", str(ROOT / "workflow/Snakefile"), "--configfile", "mine.yaml")
    dry = snakemake(tmp_path, *command, "--dry-run", "--", "machine")
    assert str(machine_file(Path("results-mine"), "cpu")) in dry
    rules = set(re.findall(r"^(\w+) +1$", dry, re.M))
    assert rules == {"machine", "measure_machine"}


def test_every_rule_that_a_cluster_runs_asks_for_time_and_memory_and_can_be_named() -> None:
    profile = yaml.safe_load((ROOT / "profiles/slurm/config.yaml").read_text())
    listed = snakemake(ROOT, "--list-rules", "--configfile", "config/config.yaml")
    after_runs = {"extract_activity", "measure_scenario", "draw_figures", "conclude", "write_report"}
    assert set(listed.split()) >= after_runs >= set(profile["groups"])


def test_every_configuration_has_results_of_its_own_which_commands_find_too(tmp_path: Path) -> None:
    """The report of a configuration does not take the place of another one's."""
    stated = yaml.safe_dump({"scenarios": {"a": SCENARIO}})
    for name in ("config/config.yaml", "config/mine.yaml", "other.yaml"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(stated)
    (tmp_path / "site.yaml").write_text("time_limit_min: 5\n")
    at = ("--snakefile", str(ROOT / "workflow/Snakefile"), "--dry-run")

    def report(*configuration: str) -> set[str]:
        return set(re.findall(r"Missing output files: (\S+report\.html)", snakemake(tmp_path, *at, *configuration)))

    assert report() == {"results/report.html"}
    assert report("--configfile", "config/config.yaml") == {"results/report.html"}
    assert report("--configfile", "config/mine.yaml") == {"results-mine/report.html"}
    assert report("--configfile", "other.yaml", "site.yaml") == {"results-other/report.html"}
    for name in ("config/config.yaml", "config/mine.yaml", "other.yaml"):
        file = tmp_path / name
        [folder] = report("--configfile", name)
        assert folder == f"{read_experiment(file).results}/report.html"
