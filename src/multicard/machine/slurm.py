"""Slurm: its tools, its partitions, its accounting, and whether it takes a job of a profile."""

import re
from dataclasses import dataclass
from typing import Any

from multicard.core.errors import UserError
from multicard.core.system import Answer, ask
from multicard.core.text import counted, first_of
from multicard.machine import Check
from multicard.machine.slurm_limits import check_jobs

# --exact: else a smallest node stands for all.
PARTITIONS = ["sinfo", "--noheader", "--exact", "--format=%R|%a|%D|%G|%T"]
# States of nodes that take no new jobs; "*" marks a node that does not respond.
NOT_UP = ("drain", "down", "fail", "unk", "inval", "error", "maint", "*")
# What the plugin's status command would ask; a Slurm without slurmdbd refuses it.
ACCOUNTING = ["sacct", "--allocations", "--noheader", "--parsable2", "--format=JobIDRaw"]
SHOWN = 8
RUN = "launch_run"


@dataclass(frozen=True)
class Nodes:
    """Nodes of a partition that are alike."""

    count: int
    up: bool
    gpus: int


Partitions = dict[str, list[Nodes]]


def here() -> bool:
    """Whether jobs can be handed to a Slurm from here."""
    return ask(["sinfo", "--noheader", "--format=%R"]).problem is None


def checks(profile: dict[str, Any] | None, demanded: bool = False) -> list[Check]:
    """Look at Slurm and at a profile for it.

    `demanded`: the user named the profile, so that Slurm must be there.
    """
    for_slurm = profile is not None and profile.get("executor") == "slurm"
    absent = "error" if demanded and for_slurm else "warning"
    version = ask(["sinfo", "--version"])
    if version.problem and "not on the PATH" in version.problem:
        return [Check("Slurm", "none here: sinfo is not on the PATH", absent, "profiles/local runs without Slurm")]
    told = re.search(r"\d+\.\d+[\w.-]*", version.output)
    if version.problem or told is None:
        found = f"cannot tell: {version.problem or 'sinfo prints no version'}"
        return [Check("Slurm", found, "warning", "reinstall slurm-client, or look on a node of the cluster")]
    tools, answer = Check("Slurm", told[0]), ask(PARTITIONS)
    partitions = _partitions(answer)
    if answer.problem or not partitions:
        found = f"cannot tell: {answer.problem or 'sinfo lists none'}"
        return [tools, Check("Slurm partitions", found, absent, "look on a node of the cluster")]
    has_gpus = any(node.gpus for nodes in partitions.values() for node in nodes)
    listed = first_of([f"{name} ({_listed(nodes)})" for name, nodes in partitions.items()], SHOWN)
    do = "" if has_gpus else "no node declares GPUs (gres) to Slurm"
    found = [tools, Check("Slurm partitions", listed, "ok" if has_gpus else "warning", do)]
    if profile is not None and not for_slurm:
        found.append(Check("profile", f"its executor is {profile.get('executor', 'local')}, not slurm", "warning"))
    elif profile is not None:
        job = {"qos": str(profile.get("slurm-qos") or "")} | resources_of(profile, RUN)
        found += [_accounting(profile), _submitted(profile, job)]
        place = (job.get(name, "") for name in ("slurm_partition", "slurm_account", "qos"))
        found += filter(None, [check_jobs(profile, *place)])
    return found


def _partitions(answer: Answer) -> Partitions:
    """Nodes of each partition, those alike together."""
    found: Partitions = {}
    for line in answer.lines:
        fields = [field.strip() for field in line.split("|")]
        if len(fields) != 5 or not fields[2].isdecimal():
            continue
        name, state, count, gres, of_nodes = fields
        up = state == "up" and ("power" in of_nodes or not any(word in of_nodes.lower() for word in NOT_UP))
        # Of a list such as gpu:h100:4(S:0-1),nvme:1.
        gpus = sum(map(int, re.findall(r"(?:^|,)gpu:(?:[^:,(]*:)*(\d+)", gres)))
        found.setdefault(name, []).append(Nodes(int(count), up, gpus))
    return found


def _listed(nodes: list[Nodes]) -> str:
    gpus, most = sorted({node.gpus for node in nodes if node.gpus}), max(node.gpus for node in nodes)
    down = "" if any(node.up for node in nodes) else ", not up"
    each = f" of {' or '.join(map(str, gpus))} {'GPU' if most == 1 else 'GPUs'}" if gpus else ""
    return counted(sum(node.count for node in nodes), "node") + each + down


def _accounting(profile: dict[str, Any]) -> Check:
    """Whether Snakemake can learn from Slurm that a job has ended."""
    accounting, asked = ask(ACCOUNTING), profile.get("slurm-status-command") or "sacct"
    found = f"{accounting.problem or 'sacct answers'}; the profile asks {asked}"
    if accounting.problem and asked != "squeue":
        do = "slurm-status-command: squeue in the profile; with sacct Snakemake would never see a job end"
        return Check("Slurm accounting", found, "error", do)
    return Check("Slurm accounting", found)


def _submitted(profile: dict[str, Any], job: dict[str, str]) -> Check:
    """Have Slurm judge a job on as many nodes and GPUs as the profile states, without submitting one.

    `job`: resources that the profile states for a run.
    """
    options = {"partition": "slurm_partition", "account": "slurm_account", "qos": "qos"}
    asked = [f"--{option}={job[name]}" for option, name in options.items() if job.get(name)]
    config = profile.get("config")
    cluster = (config if isinstance(config, dict) else {}).get("cluster") or {}
    nodes, gpus = (_number(cluster.get(name)) for name in ("nodes", "gpus_per_node"))
    asked += ([f"--nodes={nodes}"] if nodes else []) + ([f"--gres=gpu:{gpus}"] if gpus else [])
    answer = ask(["sbatch", "--test-only", *asked, "--time=1", "--output=/dev/null", "--wrap=true"])
    if answer.problem is None:
        return Check("profile: job", f"Slurm would take one ({' '.join(asked) or 'with its defaults'})")
    do = "slurm_partition, slurm_account and slurm-qos in the profile, and under config: cluster: what its nodes have"
    return Check("profile: job", f"with {' '.join(asked) or 'its defaults'} {answer.problem}", "error", do)


def resources_of(profile: dict[str, Any], rule: str) -> dict[str, str]:
    """Resources that a profile states for a rule: its own, else the defaults of all rules.

    >>> resources_of({"default-resources": {"slurm_partition": "gpu"}, "set-resources": {"a": {"mem_mb": 5}}}, "a")
    {'slurm_partition': 'gpu', 'mem_mb': '5'}

    Raises `UserError` if it states them in another form, as a list is.
    """
    found: dict[str, str] = {}
    of_rules = profile.get("set-resources") or {}
    for stated in (profile.get("default-resources"), of_rules.get(rule) if isinstance(of_rules, dict) else of_rules):
        if not isinstance(stated or {}, dict):
            raise UserError(f"profile: found the resources {stated!r}, expected a mapping of names to values")
        found |= {str(name): str(value).strip("'\" ") for name, value in (stated or {}).items() if value is not None}
    return found


def _number(stated: object) -> int:
    """A whole number as a profile states it, 0 if it states none."""
    return int(str(stated)) if str(stated).isdecimal() else 0
