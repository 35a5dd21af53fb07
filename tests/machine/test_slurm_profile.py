"""Slurm and a profile for it are held against each other. Slurm's tools are fakes here."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from faked_programs import GARBAGE, HANG, place, sinfo

from conftest import ROOT
from multicard.archive.matrix import Matrix
from multicard.core import system
from multicard.core.errors import UserError
from multicard.experiment.load import check, read_profile
from multicard.machine import Check, slurm

TOOLS = ("sbatch", "sinfo", "sacct")
ROWS = [
    "debug|up|2|(null)|30:00|16000",
    "gpu|up|10|gpu:h100:4(S:0-1),nvme:1|2-00:00:00|256000",
    "gpu|up|6|gpu:h100:4(S:0-1),nvme:1|2-00:00:00|512000",
    "gpu|up|1|gpu:a100:8(S:0,2)|2-00:00:00|1000000",
    "old|down|1|gpu:2|infinite|8000",
]
ANSWERS = {"sinfo": sinfo(ROWS)}
NO_ACCOUNTING = "echo 'Slurm accounting storage is disabled' >&2; exit 1"

Look = Callable[..., dict[str, Check]]


@pytest.fixture
def look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Look:
    """Give checks of a profile with fakes of the tools; a script replaces that of a tool, None takes the tool away."""

    def looked(
        profile: dict[str, Any] | None = None,
        demanded: bool = False,
        matrix: Matrix | None = None,
        **scripts: str | None,
    ) -> dict[str, Check]:
        folder = tmp_path / f"tools{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        fake = place(folder, monkeypatch, *TOOLS)
        for tool in TOOLS:
            script = scripts.get(tool, ANSWERS.get(tool, "echo slurm 24.05.4"))
            if script is not None:
                fake(tool, script)
        return {one.check: one for one in slurm.checks(profile, demanded, matrix)}

    return looked


def a_profile(**options: Any) -> dict[str, Any]:
    return {"executor": "slurm", "slurm-status-command": "squeue", "default-resources": {}} | options


def test_partitions_are_listed_with_the_gpus_of_their_nodes(look: Look) -> None:
    found = look()
    assert found["Slurm"].found == "24.05.4"
    says = "debug (2 nodes), gpu (17 nodes of 4 or 8 GPUs), old (1 node of 2 GPUs, not up)"
    assert found["Slurm partitions"].found == says
    without = look(sinfo=sinfo(["all|up|3|(null)|1:00:00|8000"]))["Slurm partitions"]
    assert (without.verdict, without.do) == ("warning", "no node declares GPUs (gres) to Slurm")


@pytest.mark.parametrize(
    ("command", "sacct", "verdict"),
    [
        (None, NO_ACCOUNTING, "error"),
        ("sacct", NO_ACCOUNTING, "error"),
        ("squeue", NO_ACCOUNTING, "ok"),
        ("sacct", "exit 0", "ok"),
    ],
)
def test_without_accounting_a_profile_must_ask_squeue(
    look: Look, command: str | None, sacct: str, verdict: str
) -> None:
    found = look(a_profile(**{"slurm-status-command": command}), sacct=sacct)
    accounting = found["Slurm accounting"]
    assert accounting.verdict == verdict
    assert ("Slurm accounting storage is disabled" in accounting.found) == (sacct == NO_ACCOUNTING)
    assert verdict == "ok" or accounting.do.startswith("slurm-status-command: squeue in the profile")


# Slurm's words where it takes a job, and where it does not know the account.
TAKES = "echo 'sbatch: Job 4711 to start at 2026-11-26T00:00:00 using 1 processors on nodes n1 in partition gpu' >&2"
REFUSES = "echo 'allocation failure: Invalid account or account/partition combination specified' >&2; exit 1"


@pytest.mark.parametrize(
    ("resources", "options", "asked"),
    [
        ({"slurm_partition": "gpu", "slurm_account": "ours"}, {}, "--partition=gpu --account=ours"),
        ({"slurm_partition": "'gpu'"}, {"slurm-qos": "long"}, "--partition=gpu --qos=long"),
        (
            {"slurm_partition": "gpu"},
            {"config": {"cluster": {"nodes": "2", "gpus_per_node": 4}}},
            "--partition=gpu --nodes=2 --gres=gpu:4",
        ),
    ],
)
def test_slurm_judges_a_job_of_the_profile_without_getting_one(
    look: Look, tmp_path: Path, resources: Any, options: dict[str, Any], asked: str
) -> None:
    profile = a_profile(**{"default-resources": resources} | options)
    for script, verdict in ((TAKES, "ok"), (REFUSES, "error")):
        version = '[ "$1" = --version ] && echo slurm 24.05.4 && exit'
        found = look(profile, sbatch=f'{version}; echo "$*" > {tmp_path}/asked; {script}')["profile: job"]
        assert (found.verdict, asked in found.found) == (verdict, True)
        assert ("Invalid account" in found.found) == (verdict == "error")
        assert (tmp_path / "asked").read_text().startswith(f"--test-only {asked} ")


@pytest.mark.parametrize(
    "options", [{"default-resources": ["slurm_partition=gpu"]}, {"set-resources": ["launch_run:mem_mb=5"]}]
)
def test_resources_in_the_form_of_a_list_are_refused_in_one_line(look: Look, options: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=r"profile: found the resources \['.*'\], expected a mapping"):
        look(a_profile(**options))


CLUSTER = {"nodes": 1, "gpus_per_node": "4", "cpus_per_node": "96"}


def planned(
    time_limit_min: int = 60, cluster: dict[str, str] | None = None, timing: str = "exclusive", **fixed: Any
) -> Matrix:
    """An experiment of one run."""
    scenario = {"question": "?", "figures": ["step_breakdown"], "fixed": {"strategy": "ddp-ds"} | fixed}
    stated = {"time_limit_min": time_limit_min, "timing": timing, "cluster": CLUSTER | (cluster or {})}
    return Matrix.plan(check(stated | {"scenarios": {"a": scenario}}, "test"))


def for_runs(partition: str, **options: Any) -> dict[str, Any]:
    cluster = CLUSTER | options.pop("cluster", {})
    # Of steps that ask for no amount themselves.
    resources = {"default-resources": {"slurm_partition": partition, "mem_mb": 1500, "runtime": 10}}
    return a_profile(**resources | {"config": {"cluster": cluster}} | options)


@pytest.mark.parametrize(
    ("partition", "limit_min", "options", "found", "do"),
    [
        ("debug", 20, {}, "a run asks for 30 min, its partition allows 30", ""),
        ("debug", 21, {}, "a run asks for 31 min, its partition allows 30: the job would stay", "at most 20;"),
        ("debug,gpu", 2870, {}, "a run asks for 2880 min", ""),
        ("debug", 60, {"set-resources": {"launch_run": {"runtime": 25}}}, "a run asks for 25 min", ""),
        ("debug", 60, {"set-resources": {"launch_run": {"slurm_partition": "gpu"}}}, "allows 2880", ""),
    ],
)
def test_a_partition_must_allow_the_time_that_a_run_asks_for(
    look: Look, partition: str, limit_min: int, options: dict[str, Any], found: str, do: str
) -> None:
    told = look(for_runs(partition, **options), matrix=planned(limit_min))["profile: time"]
    assert (found in told.found, told.verdict) == (True, "error" if do else "ok"), told
    assert do in told.do


def test_the_shipped_profile_fits_a_partition_of_one_hour_and_8_gb(look: Look) -> None:
    small = sinfo(["gpu|up|2|gpu:4|1:00:00|8000"])
    profile = read_profile(ROOT / "profiles/slurm")
    found = look(profile, matrix=planned(15, device="cpu"), sinfo=small, sacct=NO_ACCOUNTING)
    verdicts = {name: one.verdict for name, one in found.items() if name.startswith("profile")}
    assert verdicts == dict.fromkeys([f"profile: {what}" for what in ("job", "time")], "ok")


@pytest.mark.parametrize(
    ("asks", "options", "says"),
    [
        (900_000, {}, None),
        (1_100_000, {}, "asks for 1100000 MB, a node has 1000000"),
        (1_100_000, {"set-resources": {"launch_run": {"mem_mb": 64000}}}, None),
        (1_100_000, {"timing": "exclusive"}, None),  # a node to itself
    ],
)
def test_a_node_must_have_the_memory_that_a_run_asks_for(
    look: Look, monkeypatch: pytest.MonkeyPatch, asks: int, options: dict[str, Any], says: str | None
) -> None:
    monkeypatch.setattr("multicard.experiment.resources.memory_mb", lambda run: asks)
    options = dict(options)
    matrix = planned(devices=4, timing=options.pop("timing", "shared"))
    found = look(for_runs("gpu", **options), matrix=matrix)
    if says is None:
        assert "profile: memory" not in found
    else:
        assert found["profile: memory"].verdict == "error"
        assert found["profile: memory"].found == f"1 run, such as {matrix.planned()[0]}: Slurm refuses it: {says}"
    # As `multicard run --dry-run` says of each run.
    assert len(slurm.refused(for_runs("gpu", **options), matrix)) == (says is not None)


@pytest.mark.parametrize(
    ("state", "up"), [("drained*", False), ("down", False), ("idle*", False), ("mixed", True), ("powered_down", True)]
)
def test_runs_that_no_node_takes_and_nodes_that_are_down_ask_for_nothing(look: Look, state: str, up: bool) -> None:
    assert "profile: time" not in look(for_runs("gpu"), matrix=planned(devices=8))
    assert "profile: time" not in look(for_runs("old"), matrix=planned())
    nodes = sinfo([f"gpu|up|2|gpu:4|1-00:00:00|256000|{state}"])
    assert ("profile: time" in look(for_runs("gpu"), matrix=planned(), sinfo=nodes)) is up


def test_a_slurm_that_does_not_answer_is_wrong_only_where_a_profile_demands_it(
    look: Look, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing = dict.fromkeys(TOOLS)
    assert look(a_profile(), **nothing)["Slurm"].verdict == "warning"
    assert look(a_profile(), demanded=True, **nothing)["Slurm"].verdict == "error"
    assert look({"cores": "all"}, demanded=True, **nothing)["Slurm"].verdict == "warning"
    for listing in ("printf 'gpu|up|many|gpu:\\n|||\\n'", "exit 1"):
        script = f'[ "$1" = --version ] && echo slurm 24.05.4 && exit; {listing}'
        for demanded, verdict in ((False, "warning"), (True, "error")):
            found = look(a_profile(), demanded=demanded, sinfo=script)
            assert [one.verdict for one in found.values()] == ["ok", verdict]
    for script, says in ((GARBAGE, "sinfo prints no version"), (HANG, "sinfo did not end within 0.3 s")):
        monkeypatch.setattr(system, "LIMIT_S", 0.3 if script == HANG else 20)
        [only] = look(a_profile(), sinfo=script).values()
        assert (only.check, only.verdict, only.found) == ("Slurm", "warning", f"cannot tell: {says}")
