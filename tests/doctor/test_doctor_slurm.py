"""Slurm and a profile for it are held against each other. Slurm's tools are fakes here."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from faked_tools import GARBAGE, HANG, place, sinfo

from multicard import programs
from multicard.doctor import slurm
from multicard.doctor.checks import Check
from multicard.errors import UserError
from multicard.experiment.load import read_profile

TOOLS = ("sbatch", "srun", "sinfo", "squeue", "sacct")
ROWS = [
    "debug|up|2|(null)|8",
    "gpu|up|16|gpu:h100:4(S:0-1),nvme:1|96+",
    "gpu|up|1|gpu:a100:8(S:0,2)|128",
    "old|down|1|gpu:2|16",
]
NO_ACCOUNTING = "echo 'Slurm accounting storage is disabled' >&2; exit 1"


def looked(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    profile: dict[str, Any] | None = None,
    demanded: bool = False,
    **scripts: str | None,
) -> dict[str, Check]:
    folder = tmp_path / f"tools{len(list(tmp_path.iterdir()))}"
    folder.mkdir()
    fake = place(folder, monkeypatch, *TOOLS)
    for tool in TOOLS:
        script = scripts.get(tool, sinfo(ROWS) if tool == "sinfo" else "echo slurm 24.05.4")
        if script is not None:
            fake(tool, script)
    return {check.check: check for check in slurm.checks(profile, demanded)}


def a_profile(**options: Any) -> dict[str, Any]:
    return {"executor": "slurm", "slurm-status-command": "squeue", "default-resources": {}} | options


def test_partitions_are_listed_with_the_gpus_of_their_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = looked(tmp_path, monkeypatch)
    assert found["Slurm"].found == "24.05.4, with sbatch, srun, sinfo, squeue"
    assert found["Slurm partitions"].found == (
        "debug: 2 nodes; gpu: 16 nodes of 4 h100 GPUs, 1 node of 8 a100 GPUs; old: 1 node of 2 GPUs (not up)"
    )


def test_nodes_that_declare_no_gpus_are_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = looked(tmp_path, monkeypatch, sinfo=sinfo(["all|up|3|(null)|4"]))["Slurm partitions"]
    assert (found.verdict, found.do) == ("note", "no node declares GPUs (gres) to Slurm")


@pytest.mark.parametrize("command", [None, "sacct"])
def test_without_accounting_a_profile_must_ask_squeue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str | None
) -> None:
    profile = a_profile(**{"slurm-status-command": command})
    found = looked(tmp_path, monkeypatch, profile, sacct=NO_ACCOUNTING)["Slurm accounting"]
    assert found.verdict == "wrong"
    assert "Slurm accounting storage is disabled" in found.found
    assert found.do.startswith("slurm-status-command: squeue in the profile")


def test_without_accounting_a_profile_that_asks_squeue_is_fine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = looked(tmp_path, monkeypatch, a_profile(), sacct=NO_ACCOUNTING)
    assert found["Slurm accounting"].verdict == "ok"
    assert found["profile: account"].verdict == "ok"


def test_with_accounting_either_command_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = looked(tmp_path, monkeypatch, a_profile(**{"slurm-status-command": "sacct"}))["Slurm accounting"]
    assert (found.verdict, found.found) == ("ok", "sacct answers; the profile asks sacct")


@pytest.mark.parametrize(
    "resources",
    [
        {"default-resources": {"slurm_partition": "h100", "mem_mb": 8000}},
        {"default-resources": ["slurm_partition='h100'", "mem_mb=8000"]},
        {"set-resources": {"launch_run": {"slurm_partition": "gpu,h100"}}},
        {"set-resources": ["launch_run:slurm_partition=h100"]},
    ],
)
def test_a_partition_that_the_cluster_has_not_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, resources: dict[str, Any]
) -> None:
    found = looked(tmp_path, monkeypatch, a_profile(**resources))["profile: partition"]
    assert (found.verdict, found.found) == ("wrong", "not known to this Slurm: h100")
    assert found.do == "slurm_partition in the profile: one of debug, gpu, old"


def test_partition_and_account_of_a_profile_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    resources = {"slurm_partition": "gpu", "slurm_account": "plgrid-gpu"}
    found = looked(tmp_path, monkeypatch, a_profile(**{"default-resources": resources}))
    assert [(found[key].verdict, found[key].found) for key in ("profile: partition", "profile: account")] == [
        ("ok", "gpu"),
        ("ok", "plgrid-gpu"),
    ]
    found = looked(tmp_path, monkeypatch, a_profile())
    assert {found[key].verdict for key in ("profile: partition", "profile: account")} == {"note"}


@pytest.mark.parametrize(
    ("partition", "cluster", "has"),
    [
        ("gpu", {"nodes": 16, "gpus_per_node": 4, "cpus_per_node": 96}, None),
        ("gpu", {"nodes": "17", "gpus_per_node": "4"}, None),
        ("gpu", {"gpus_per_node": 8}, None),
        ("gpu", {"nodes": 2, "gpus_per_node": 8}, 1),
        ("gpu", {"nodes": 2, "gpus_per_node": 4, "cpus_per_node": 256}, 0),
        ("debug", {"nodes": 1, "gpus_per_node": 1}, 0),
        ("old", {"nodes": 1, "gpus_per_node": 2}, 0),  # which is down
        (None, {"nodes": 19}, None),
    ],
)
def test_what_a_profile_says_of_the_nodes_must_be_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, partition: str | None, cluster: dict[str, Any], has: int | None
) -> None:
    resources = {"slurm_partition": partition} if partition else {}
    profile = a_profile(**{"default-resources": resources, "config": {"cluster": cluster}})
    found = looked(tmp_path, monkeypatch, profile)["profile: cluster"]
    assert found.verdict == ("ok" if has is None else "wrong"), found
    assert has is None or found.found.endswith(f"of which its partitions have {has}")


@pytest.mark.parametrize(
    ("script", "says"),
    [
        (GARBAGE, "cannot tell: an answer without sense"),
        (HANG, "cannot tell: sinfo did not end within 0.3 s"),
        ("exit 1", "cannot tell: sinfo ended with 1, saying: nothing"),
    ],
)
def test_a_sinfo_that_is_of_no_use_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, says: str
) -> None:
    monkeypatch.setattr(programs, "LIMIT_S", 0.3 if script == HANG else 20)
    [only] = looked(tmp_path, monkeypatch, a_profile(), sinfo=script).values()
    assert (only.check, only.verdict, only.found) == ("Slurm", "note", says)


@pytest.mark.parametrize("listing", ["printf 'gpu|up|many|gpu:\\n|||\\n'", "exit 1", GARBAGE])
def test_a_slurm_that_lists_no_partitions_is_wrong_only_where_it_is_demanded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listing: str
) -> None:
    script = f'[ "$1" = --version ] && echo slurm 24.05.4 && exit; {listing}'
    found = looked(tmp_path, monkeypatch, a_profile(), sinfo=script)
    assert [check.verdict for check in found.values()] == ["ok", "note"]
    found = looked(tmp_path, monkeypatch, a_profile(), demanded=True, sinfo=script)
    assert [check.verdict for check in found.values()] == ["ok", "wrong"]


def test_no_slurm_is_wrong_only_where_a_profile_demands_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = dict.fromkeys(TOOLS)
    assert looked(tmp_path, monkeypatch, a_profile(), **nothing)["Slurm"].verdict == "note"
    assert looked(tmp_path, monkeypatch, a_profile(), demanded=True, **nothing)["Slurm"].verdict == "wrong"
    assert looked(tmp_path, monkeypatch, {"cores": "all"}, demanded=True, **nothing)["Slurm"].verdict == "note"


def test_a_missing_tool_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = looked(tmp_path, monkeypatch, sbatch=None)["Slurm"]
    assert found.found == "24.05.4, but no working sbatch"


def test_a_profile_is_read_from_its_folder_and_faults_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(a_profile()))
    assert read_profile(tmp_path) == a_profile()
    with pytest.raises(UserError, match="none: holds no profile of Snakemake"):
        read_profile(tmp_path / "none")
    (tmp_path / "config.yaml").write_text("- a list\n")
    with pytest.raises(UserError, match="found no mapping"):
        read_profile(tmp_path)
