"""Slurm: its tools, its partitions, its accounting, and whether the profile's values fit them."""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from multicard.archive.matrix import Matrix
from multicard.core.errors import UserError
from multicard.core.system import Answer, ask
from multicard.core.text import counted, first_of
from multicard.experiment.resources import AROUND_MIN, memory_of_attempt_mb
from multicard.machine import Check

# --exact: else a smallest node stands for all.
PARTITIONS = ["sinfo", "--noheader", "--exact", "--format=%R|%a|%D|%G|%l|%m|%T"]
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
    limit_min: float  # of a job
    memory_mb: int


Partitions = dict[str, list[Nodes]]


def here() -> bool:
    """Whether jobs can be handed to a Slurm from here."""
    return ask(["sinfo", "--noheader", "--format=%R"]).problem is None


def checks(profile: dict[str, Any] | None, demanded: bool = False, matrix: Matrix | None = None) -> list[Check]:
    """Look at Slurm and at a profile for it.

    Parameters
    ----------
    demanded
        The user named the profile, so that Slurm must be there.
    matrix
        Runs planned for the profile's cluster, which its partitions must take.
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
        found += [_accounting(profile), _submitted(profile), *_runs(profile, partitions, matrix)]
    return found


def refused(profile: dict[str, Any], matrix: Matrix, partitions: Partitions | None = None) -> dict[str, str]:
    """Runs that ask for more memory than a node of their partition has, each with what Slurm refuses."""
    fixed = _number(own_resources(profile, RUN).get("mem_mb"))
    nodes = _usable(profile, _partitions(ask(PARTITIONS)) if partitions is None else partitions)
    if not nodes or (matrix.experiment.timing == "exclusive" and not fixed):
        return {}  # which then asks for all that a node has
    most = max(node.memory_mb for node in nodes)
    asked = {run: fixed or memory_of_attempt_mb(matrix.runs[run], 1, matrix.experiment) for run in matrix.planned()}
    return {run: f"Slurm refuses it: asks for {mb} MB, a node has {most}" for run, mb in asked.items() if mb > most}


def _partitions(answer: Answer) -> Partitions:
    """Nodes of each partition, those alike together."""
    found: Partitions = {}
    for line in answer.lines:
        fields = [field.strip() for field in line.split("|")]
        if len(fields) != 7 or not fields[2].isdecimal():
            continue
        name, state, count, gres, limit, memory, of_nodes = fields
        up = state == "up" and ("power" in of_nodes or not any(word in of_nodes.lower() for word in NOT_UP))
        # Of a list such as gpu:h100:4(S:0-1),nvme:1.
        gpus = sum(map(int, re.findall(r"(?:^|,)gpu:(?:[^:,(]*:)*(\d+)", gres)))
        memory_mb = int(re.match(r"\d*", memory)[0] or 0)
        found.setdefault(name, []).append(Nodes(int(count), up, gpus, _minutes(limit), memory_mb))
    return found


def _listed(nodes: list[Nodes]) -> str:
    gpus, most = sorted({node.gpus for node in nodes if node.gpus}), max(node.gpus for node in nodes)
    down = "" if any(node.up for node in nodes) else ", not up"
    each = f" of {' or '.join(map(str, gpus))} {'GPU' if most == 1 else 'GPUs'}" if gpus else ""
    return counted(sum(node.count for node in nodes), "node") + each + down


def _minutes(limit: str) -> float:
    """Minutes of a time limit as Slurm writes it, days-hours:minutes:seconds; endless where it has none.

    >>> _minutes("2-00:30:00"), _minutes("1:00:00"), _minutes("30:00"), _minutes("infinite")
    (2910.0, 60.0, 30.0, inf)
    """
    told = re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)", limit)
    if told is None:
        return math.inf
    days, hours, minutes, seconds = (int(part or 0) for part in told.groups())
    return days * 1440 + hours * 60 + minutes + seconds / 60


def _accounting(profile: dict[str, Any]) -> Check:
    """Whether Snakemake can learn from Slurm that a job has ended."""
    accounting, asked = ask(ACCOUNTING), profile.get("slurm-status-command") or "sacct"
    found = f"{accounting.problem or 'sacct answers'}; the profile asks {asked}"
    if accounting.problem and asked != "squeue":
        do = "slurm-status-command: squeue in the profile; with sacct Snakemake would never see a job end"
        return Check("Slurm accounting", found, "error", do)
    return Check("Slurm accounting", found)


def _submitted(profile: dict[str, Any]) -> Check:
    """Have Slurm judge a job on as many nodes and GPUs as the profile states, without submitting one."""
    of_run = {"qos": str(profile.get("slurm-qos") or "")} | resources_of(profile, RUN)
    options = {"partition": "slurm_partition", "account": "slurm_account", "qos": "qos"}
    asked = [f"--{option}={of_run[name]}" for option, name in options.items() if of_run.get(name)]
    config = profile.get("config")
    cluster = (config if isinstance(config, dict) else {}).get("cluster") or {}
    nodes, gpus = (_number(cluster.get(name)) for name in ("nodes", "gpus_per_node"))
    asked += ([f"--nodes={nodes}"] if nodes else []) + ([f"--gres=gpu:{gpus}"] if gpus else [])
    answer = ask(["sbatch", "--test-only", *asked, "--time=1", "--output=/dev/null", "--wrap=true"])
    if answer.problem is None:
        return Check("profile: job", f"Slurm would take one ({' '.join(asked) or 'with its defaults'})")
    do = "slurm_partition, slurm_account and slurm-qos in the profile, and under config: cluster: what its nodes have"
    return Check("profile: job", f"with {' '.join(asked) or 'its defaults'} {answer.problem}", "error", do)


def _runs(profile: dict[str, Any], partitions: Partitions, matrix: Matrix | None) -> Iterator[Check]:
    """Compare what the runs ask for with the limits of their partitions."""
    nodes = _usable(profile, partitions)
    if matrix is None or not nodes or not matrix.planned():
        return
    minutes = _number(own_resources(profile, RUN).get("runtime")) or matrix.experiment.time_limit_min + AROUND_MIN
    longest = max(node.limit_min for node in nodes)
    found = f"a run asks for {minutes} min, its partition allows {longest:g}"
    if minutes <= longest:
        yield Check("profile: time", found)
    else:
        do = f"time_limit_min in the configuration, at most {max(int(longest) - AROUND_MIN, 0)}; or another partition"
        yield Check("profile: time", f"{found}: the job would stay pending", "error", do)
    if lost := refused(profile, matrix, partitions):
        run, reason = next(iter(lost.items()))
        do = "smaller runs, another partition, or mem_mb under set-resources"
        yield Check("profile: memory", f"{counted(len(lost), 'run')}, such as {run}: {reason}", "error", do)


def resources_of(profile: dict[str, Any], rule: str) -> dict[str, str]:
    """Resources that a profile states for a rule: its own, else the defaults of all rules.

    >>> resources_of({"default-resources": {"slurm_partition": "gpu"}, "set-resources": {"a": {"mem_mb": 5}}}, "a")
    {'slurm_partition': 'gpu', 'mem_mb': '5'}

    Raises
    ------
    UserError
        If it states them in another form, as a list is.
    """
    found: dict[str, str] = {}
    of_rules = profile.get("set-resources") or {}
    for stated in (profile.get("default-resources"), of_rules.get(rule) if isinstance(of_rules, dict) else of_rules):
        if not isinstance(stated or {}, dict):
            raise UserError(f"profile: found the resources {stated!r}, expected a mapping of names to values")
        found |= {str(name): str(value).strip("'\" ") for name, value in (stated or {}).items() if value is not None}
    return found


def own_resources(profile: dict[str, Any], rule: str) -> dict[str, str]:
    """Resources that a profile states for a rule alone: defaults do not count where the rule asks for an amount."""
    return resources_of(profile | {"default-resources": None}, rule)


def _usable(profile: dict[str, Any], partitions: Partitions) -> list[Nodes]:
    """Nodes that are up, of the partitions that runs may get, else of all."""
    names = [name for name in resources_of(profile, RUN).get("slurm_partition", "").split(",") if name] or partitions
    return [node for name in names for node in partitions.get(name, []) if node.up and node.count]


def _number(stated: object) -> int:
    """A whole number as a profile states it, 0 if it states none."""
    return int(str(stated)) if str(stated).isdecimal() else 0
