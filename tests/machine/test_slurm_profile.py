"""Slurm and a profile for it are held against each other. Slurm's tools are fakes here."""

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from faked_programs import GARBAGE, HANG, place, sinfo

from conftest import ROOT
from multicard.config.load import read_profile
from multicard.core.errors import UserError
from multicard.core.system import ask
from multicard.machine import Check, slurm

TOOLS = ("sbatch", "sinfo", "sacct", "sacctmgr", "scontrol")
ROWS = [
    "debug|up|2|(null)",
    "gpu|up|10|gpu:h100:4(S:0-1),nvme:1",
    "gpu|up|6|gpu:h100:4(S:0-1),nvme:1",
    "gpu|up|1|gpu:a100:8(S:0,2)",
    "old|down|1|gpu:2",
]
ANSWERS = {"sinfo": sinfo(ROWS)}
NO_ACCOUNTING = "echo 'Slurm accounting storage is disabled' >&2; exit 1"

Look = Callable[..., dict[str, Check]]


@pytest.fixture
def look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Look:
    """Give checks of a profile with fakes of the tools; a script replaces that of a tool, None takes the tool away."""

    def looked(
        profile: dict[str, Any] | None = None, demanded: bool = False, **scripts: str | None
    ) -> dict[str, Check]:
        folder = tmp_path / f"tools{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        fake = place(folder, monkeypatch, *TOOLS)
        for tool in TOOLS:
            script = scripts.get(tool, ANSWERS.get(tool, "echo slurm 24.05.4"))
            if script is not None:
                fake(tool, script)
        return {one.check: one for one in slurm.checks(profile, demanded)}

    return looked


def a_profile(**options: Any) -> dict[str, Any]:
    return {"executor": "slurm", "slurm-status-command": "squeue", "default-resources": {}} | options


def test_partitions_are_listed_with_the_gpus_of_their_nodes(look: Look) -> None:
    found = look()
    assert found["Slurm"].found == "24.05.4"
    says = "debug (2 nodes), gpu (17 nodes of 4 or 8 GPUs), old (1 node of 2 GPUs, not up)"
    assert found["Slurm partitions"].found == says
    without = look(sinfo=sinfo(["all|up|3|(null)"]))["Slurm partitions"]
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


def test_slurm_takes_a_job_of_the_shipped_profile(look: Look) -> None:
    found = look(read_profile(ROOT / "profiles/slurm"), sacct=NO_ACCOUNTING)
    assert found["profile: job"].verdict == found["Slurm accounting"].verdict == "ok"


@pytest.mark.parametrize(
    ("state", "up"), [("drained*", False), ("down", False), ("idle*", False), ("mixed", True), ("powered_down", True)]
)
def test_a_partition_without_a_node_that_takes_jobs_is_not_up(look: Look, state: str, up: bool) -> None:
    found = look(sinfo=sinfo([f"gpu|up|2|gpu:4|{state}"]))["Slurm partitions"].found
    assert found == f"gpu (2 nodes of 4 GPUs{'' if up else ', not up'})"


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
    for script, says, limit_s in (
        (GARBAGE, "sinfo prints no version", 20),
        (HANG, "sinfo did not end within 0.3 s", 0.3),
    ):
        monkeypatch.setattr(slurm, "ask", partial(ask, limit_s=limit_s))
        [only] = look(a_profile(), sinfo=script).values()
        assert (only.check, only.verdict, only.found) == ("Slurm", "warning", f"cannot tell: {says}")


# What sacctmgr and scontrol of Slurm 22.05 print, with slurmdbd, of a user in two accounts.
SACCTMGR = r"""case "$*" in
*"show user"*) echo main ;;
*"show assoc user="*"cluster=c1 format=Account,Partition,DefaultQOS,MaxSubmit,MaxJobs")
    printf 'main||normal||4\nother||normal|1|1\n' ;;
*"show qos"*) printf 'normal||\ntight|3|1\npart|50|\n' ;;
*) exit 1 ;;
esac"""
SCONTROL = r"""case "$*" in
"show config") echo 'ClusterName             = c1' ;;
"show partition gpu") printf 'PartitionName=gpu\n   AllocNodes=ALL Default=YES QoS=part\n' ;;
*) exit 1 ;;
esac"""


@pytest.mark.parametrize(
    ("options", "verdict", "says"),
    [
        ({"jobs": 20}, "ok", "20 at a time (account main: MaxJobs 4 and QOS part: MaxSubmitPU 50)"),
        (
            {"jobs": 20, "slurm-qos": "tight"},
            "warning",
            "20 at a time, and Slurm takes no more than 3 of yours (account main: MaxJobs 4, QOS tight: MaxSubmitPU 3, "
            "QOS tight: MaxJobsPU 1 and QOS part: MaxSubmitPU 50)",
        ),
        ({"jobs": "3", "slurm-qos": "tight"}, "ok", "3 at a time (account main"),
        ({"jobs": 60}, "warning", "no more than 50 of yours"),
        (
            {"jobs": 2, "default-resources": {"slurm_partition": "gpu", "slurm_account": "other"}},
            "warning",
            "no more than 1 of yours (account other: MaxSubmit 1",
        ),
    ],
)
def test_the_jobs_of_a_profile_are_held_against_slurm_s_limits_on_a_user(
    look: Look, options: dict[str, Any], verdict: str, says: str
) -> None:
    profile = a_profile(**{"default-resources": {"slurm_partition": "gpu"}} | options)
    found = look(profile, sacctmgr=SACCTMGR, scontrol=SCONTROL)["profile: jobs"]
    assert (found.verdict, says in found.found) == (verdict, True), found
    assert verdict == "ok" or re.match(r"jobs: \d+ in the profile", found.do)


# What scontrol prints for all partitions. The QOS of the first one is not that of a job which names no partition.
PARTITIONS = r"""case "$*" in
"show config") echo 'ClusterName             = c1' ;;
"show partition") printf 'PartitionName=cpu\n   AllocNodes=ALL Default=NO QoS=tight\n   DefaultTime=NONE\n\n'
    printf 'PartitionName=gpu\n   AllocNodes=ALL Default=%s QoS=part\n\n' DEFAULT
    printf 'PartitionName=old\n   AllocNodes=ALL Default=NO QoS=N/A\n' ;;
*) exit 1 ;;
esac"""


@pytest.mark.parametrize(
    ("default", "says"),
    [
        ("YES", "60 at a time, and Slurm takes no more than 50 of yours (account main: MaxJobs 4 and QOS part"),
        ("NO", "60 at a time (account main: MaxJobs 4)"),
    ],
)
def test_a_job_without_a_partition_has_the_limits_of_the_default_one(look: Look, default: str, says: str) -> None:
    scontrol = PARTITIONS.replace("DEFAULT", default)
    found = look(a_profile(jobs=60), sacctmgr=SACCTMGR, scontrol=scontrol)["profile: jobs"]
    assert found.found.startswith(says)


def test_where_there_is_no_accounting_nothing_is_said_of_limits(look: Look) -> None:
    without = "echo 'You are not running a supported accounting_storage plugin' >&2; exit 1"
    assert "profile: jobs" not in look(a_profile(jobs=20), sacctmgr=without, scontrol=SCONTROL)
    assert "profile: jobs" not in look(a_profile(), sacctmgr=SACCTMGR, scontrol=SCONTROL)
