"""Slurm and a profile for it are held against each other. Slurm's tools are fakes here."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from faked_tools import GARBAGE, HANG, place, sinfo

from multicard.core import system
from multicard.core.errors import UserError
from multicard.doctor import slurm, slurm_runs
from multicard.doctor.checks import Check
from multicard.experiment.load import check, read_profile
from multicard.experiment.runs import distinct, expand

TOOLS = ("sbatch", "srun", "sinfo", "squeue", "sacct", "scontrol")
ROWS = [
    "debug|up|2|(null)|8|30:00|16000",
    "gpu|up|10|gpu:h100:4(S:0-1),nvme:1|96|2-00:00:00|256000",
    "gpu|up|6|gpu:h100:4(S:0-1),nvme:1|96|2-00:00:00|512000",
    "gpu|up|1|gpu:a100:8(S:0,2)|128|2-00:00:00|1000000",
    "old|down|1|gpu:2|16|infinite|8000",
]
ANSWERS = {"sinfo": sinfo(ROWS), "scontrol": "echo 'MinJobAge               = 300 sec'"}
NO_ACCOUNTING = "echo 'Slurm accounting storage is disabled' >&2; exit 1"


def looked(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    profile: dict[str, Any] | None = None,
    demanded: bool = False,
    fits: slurm.Fits | None = None,
    **scripts: str | None,
) -> dict[str, Check]:
    folder = tmp_path / f"tools{len(list(tmp_path.iterdir()))}"
    folder.mkdir()
    fake = place(folder, monkeypatch, *TOOLS)
    for tool in TOOLS:
        script = scripts.get(tool, ANSWERS.get(tool, "echo slurm 24.05.4"))
        if script is not None:
            fake(tool, script)
    return {one.check: one for one in slurm.checks(profile, demanded, fits)}


def a_profile(**options: Any) -> dict[str, Any]:
    return {"executor": "slurm", "slurm-status-command": "squeue", "default-resources": {}} | options


def test_partitions_are_listed_with_the_gpus_of_their_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = looked(tmp_path, monkeypatch)
    assert found["Slurm"].found == "24.05.4, with sbatch, srun, sinfo, squeue"
    assert found["Slurm partitions"].found == (
        "debug: 2 nodes; gpu: 16 nodes of 4 h100 GPUs, 1 node of 8 a100 GPUs; old: 1 node of 2 GPUs (not up)"
    )


def test_nodes_that_declare_no_gpus_are_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = looked(tmp_path, monkeypatch, sinfo=sinfo(["all|up|3|(null)|4|1:00:00|8000"]))["Slurm partitions"]
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


def kept(seconds: int) -> str:
    """Script of a scontrol whose Slurm forgets an ended job after so long."""
    return f"printf 'MessageTimeout          = 10 sec\\nMinJobAge               = {seconds} sec\\n'"


@pytest.mark.parametrize(
    ("scontrol", "sacct", "verdict", "do"),
    [
        (kept(300), NO_ACCOUNTING, "ok", ""),
        (kept(240), NO_ACCOUNTING, "note", "ask the cluster's administrators for MinJobAge=300"),
        (kept(60), NO_ACCOUNTING, "wrong", "ask the cluster's administrators for MinJobAge=300"),
        (kept(60), "exit 0", "wrong", "slurm-status-command: sacct in the profile"),
        (kept(0), "exit 0", "ok", "slurm-status-command: sacct in the profile"),
        (kept(0), NO_ACCOUNTING, "wrong", "ask the cluster's administrators for MinJobAge=300"),
        (GARBAGE, "exit 0", "note", "slurm-status-command: sacct in the profile"),
        ("exit 1", NO_ACCOUNTING, "note", "ask the cluster's administrators for MinJobAge=300"),
    ],
)
def test_a_slurm_that_forgets_jobs_before_their_end_is_seen_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scontrol: str, sacct: str, verdict: str, do: str
) -> None:
    found = looked(tmp_path, monkeypatch, a_profile(), scontrol=scontrol, sacct=sacct)["Slurm MinJobAge"]
    assert (found.verdict, found.do) == (verdict, do), found


@pytest.mark.parametrize("profile", [None, {"cores": "all"}, a_profile(**{"slurm-status-command": "sacct"})])
def test_only_a_profile_that_asks_squeue_needs_jobs_that_are_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, profile: dict[str, Any] | None
) -> None:
    assert "Slurm MinJobAge" not in looked(tmp_path, monkeypatch, profile, scontrol=kept(1))


def fits_of(time_limit_min: int = 60, **fixed: Any) -> slurm.Fits:
    """Checks for an experiment of one run."""
    scenario = {"question": "?", "figures": ["step_breakdown"], "fixed": {"strategy": "ddp-ds"} | fixed}
    experiment = check({"time_limit_min": time_limit_min, "scenarios": {"a": scenario}}, "test")
    return partial(slurm_runs.checks, experiment=experiment, runs=distinct(expand(experiment)))


def for_runs(partition: str, **options: Any) -> dict[str, Any]:
    cluster = {"nodes": 1, "gpus_per_node": "4", "cpus_per_node": "96"} | options.pop("cluster", {})
    resources = {"default-resources": {"slurm_partition": partition}}
    return a_profile(**resources | {"config": {"cluster": cluster}} | options)


@pytest.mark.parametrize(
    ("partition", "limit_min", "options", "found", "do"),
    [
        ("debug", 20, {}, "a run asks for 30 min", ""),
        ("debug", 21, {}, "a run asks for 31 min, its partitions give 30: it would never begin", "at most 20;"),
        ("debug,gpu", 2870, {}, "a run asks for 2880 min", ""),
        ("gpu", 2871, {}, "a run asks for 2881 min, its partitions give 2880: it would never begin", "at most 2870;"),
        ("debug", 60, {"set-resources": {"launch_run": {"runtime": 25}}}, "a run asks for 25 min", ""),
    ],
)
def test_a_partition_must_give_runs_the_time_that_they_ask_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    partition: str, limit_min: int, options: dict[str, Any], found: str, do: str,
) -> None:  # fmt: skip
    told = looked(tmp_path, monkeypatch, for_runs(partition, **options), fits=fits_of(limit_min))["profile: time"]
    assert (told.found, told.verdict) == (found, "wrong" if do else "ok")
    assert do in told.do


@pytest.mark.parametrize(
    ("asks", "options", "verdict", "says"),
    [
        (900_000, {"retries": 0}, "ok", "a run asks for up to 900000 MB of a node; they have 1000000"),
        (400_000, {"retries": 1}, "ok", "a run asks for up to 400000 MB of a node; they have 1000000"),
        (900_000, {"retries": 1}, "note", "submitted again after a loss, it asks for 1800000"),
        (900_000, {"retries": 1, "cluster": {"memory_per_node_gb": "1000"}}, "ok", "they have 1000000"),
        (1_100_000, {}, "wrong", "a run asks for up to 1100000 MB of a node; they have 1000000: Slurm refuses it"),
        (1_100_000, {"set-resources": {"launch_run": {"mem_mb": 64000}}, "retries": 1}, "ok", "up to 64000 MB"),
    ],
)
def test_a_node_must_have_the_memory_that_a_run_asks_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asks: int, options: dict[str, Any], verdict: str, says: str
) -> None:
    monkeypatch.setattr("multicard.experiment.resources.memory_mb", lambda run: asks)
    found = looked(tmp_path, monkeypatch, for_runs("gpu", **options), fits=fits_of(devices=4))["profile: memory"]
    assert (found.verdict, says in found.found) == (verdict, True), found
    if verdict == "note":
        assert found.do == "memory_per_node_gb: 1000 under config: cluster:"


def test_runs_that_no_node_takes_and_nodes_that_are_down_ask_for_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = looked(tmp_path, monkeypatch, for_runs("gpu"), fits=fits_of(devices=8))
    assert "profile: time" in found
    assert "profile: memory" not in found
    assert "profile: time" not in looked(tmp_path, monkeypatch, for_runs("old"), fits=fits_of())


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
    monkeypatch.setattr(system, "LIMIT_S", 0.3 if script == HANG else 20)
    [only] = looked(tmp_path, monkeypatch, a_profile(), sinfo=script).values()
    assert (only.check, only.verdict, only.found) == ("Slurm", "note", says)


@pytest.mark.parametrize("listing", ["printf 'gpu|up|many|gpu:\\n|||\\n'", "exit 1", GARBAGE])
def test_a_slurm_that_lists_no_partitions_is_wrong_only_where_it_is_demanded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listing: str
) -> None:
    script = f'[ "$1" = --version ] && echo slurm 24.05.4 && exit; {listing}'
    found = looked(tmp_path, monkeypatch, a_profile(), sinfo=script)
    assert [one.verdict for one in found.values()] == ["ok", "note"]
    found = looked(tmp_path, monkeypatch, a_profile(), demanded=True, sinfo=script)
    assert [one.verdict for one in found.values()] == ["ok", "wrong"]


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
