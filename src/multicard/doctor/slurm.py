"""Slurm: its tools, its partitions, its accounting, and whether the profile's values fit them."""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from getpass import getuser
from typing import Any

from multicard.core.system import Answer, ask
from multicard.core.text import counted
from multicard.doctor.checks import Check, cannot_tell

TOOLS = ("sbatch", "srun", "sinfo", "squeue")
# --exact: else a smallest node stands for all.
PARTITIONS = ["sinfo", "--noheader", "--exact", "--format=%R|%a|%D|%G|%c|%l|%m|%T"]
# States of nodes that take no new jobs; "*" marks a node that does not respond.
NOT_UP = ("drain", "down", "fail", "unk", "inval", "error", "maint", "*")
# What the plugin's status command would ask; a Slurm without slurmdbd refuses it.
ACCOUNTING = ["sacct", "--allocations", "--noheader", "--parsable2", "--format=JobIDRaw"]
SHOWN = 8
# The plugin looks at its jobs at most this far apart (`max_sleep_time` of its 2.8.0), and Slurm keeps an ended job by
# default for 300 s.
LOOKS_S, KEPT_S = 180, 300


@dataclass(frozen=True)
class Nodes:
    """Nodes of a partition that are alike."""

    count: int
    up: bool
    gpus: dict[str, int]
    cpus: int
    limit_min: float  # of a job
    memory_mb: int
    limited_by: str = "its partition"  # what sets `limit_min`

    def __str__(self) -> str:
        gpus = " and ".join(counted(count, f"{kind} GPU".strip()) for kind, count in self.gpus.items())
        nodes = counted(self.count, "node")
        return nodes + (f" of {gpus}" if gpus else "") + ("" if self.up else " (not up)")


# Checks of a profile against the cluster's partitions.
Fits = Callable[[dict[str, Any], dict[str, list[Nodes]]], Iterator[Check]]


def here() -> bool:
    """Whether jobs can be handed to a Slurm from here."""
    return ask(["sinfo", "--noheader", "--format=%R"]).problem is None


def partitions_here() -> dict[str, list[Nodes]]:
    """Nodes of each partition, those alike together; none where Slurm does not answer."""
    return _partitions(ask(PARTITIONS))


def checks(profile: dict[str, Any] | None, demanded: bool = False, fits: Fits | None = None) -> list[Check]:
    """Look at Slurm and at a profile for it.

    Parameters
    ----------
    demanded
        The user named the profile, so that Slurm must be there.
    fits
        Further checks of the profile against the partitions.
    """
    absent = "error" if demanded and profile and profile.get("executor") == "slurm" else "warning"
    version = ask(["sinfo", "--version"])
    if version.problem and "not on the PATH" in version.problem:
        return [Check("Slurm", "none here: sinfo is not on the PATH", absent, "profiles/local runs without Slurm")]
    missing = [tool for tool in TOOLS if ask([tool, "--version"]).problem]
    told = re.search(r"\d+\.\d+[\w.-]*", version.output)
    if version.problem or told is None:
        return [cannot_tell("Slurm", version, "reinstall slurm-client")]
    tools = Check("Slurm", f"{told[0]}, with {', '.join(TOOLS)}")
    if missing:
        tools = Check("Slurm", f"{told[0]}, but no working {', '.join(missing)}", absent, "install slurm-client")
    answer = ask(PARTITIONS)
    partitions = _partitions(answer)
    if answer.problem or not partitions:
        do = "look on a node of the cluster, or check Slurm's configuration"
        found = answer.problem or "sinfo lists no partitions"
        return [tools, Check("Slurm partitions", f"cannot tell: {found}", absent, do)]
    listing = "; ".join(f"{name}: {_listed(nodes)}" for name, nodes in list(partitions.items())[:SHOWN])
    more = f"; {len(partitions) - SHOWN} more" if len(partitions) > SHOWN else ""
    with_gpus = any(node.gpus for nodes in partitions.values() for node in nodes)
    listed = Check("Slurm partitions", listing + more)
    if not with_gpus:
        listed = Check("Slurm partitions", listing + more, "warning", "no node declares GPUs (gres) to Slurm")
    accounting = ask(ACCOUNTING)
    return [
        tools, listed, _accounting(accounting, profile), *_ended_jobs(accounting, profile),
        *_values(profile, partitions, accounting, fits),
    ]  # fmt: skip


def _partitions(answer: Answer) -> dict[str, list[Nodes]]:
    """Nodes of each partition, those alike together."""
    found: dict[str, list[Nodes]] = {}
    for line in answer.lines:
        fields = [field.strip() for field in line.split("|")]
        if len(fields) != 8 or not fields[2].isdecimal():
            continue
        name, state, count, gres, *amounts, limit, memory, of_nodes = fields
        up = state == "up" and ("power" in of_nodes or not any(word in of_nodes.lower() for word in NOT_UP))
        cpus, memory_mb = (int(re.match(r"\d*", amount)[0] or 0) for amount in (*amounts, memory))
        found.setdefault(name, []).append(Nodes(int(count), up, _gpus(gres), cpus, _minutes(limit), memory_mb))
    return found


def _listed(nodes: list[Nodes]) -> str:
    """Nodes of a partition, those with the same GPUs together."""
    alike: dict[str, list[Nodes]] = {}
    for node in nodes:
        alike.setdefault(str(replace(node, count=1)), []).append(node)
    return ", ".join(str(replace(same[0], count=sum(node.count for node in same))) for same in alike.values())


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


def _gpus(gres: str) -> dict[str, int]:
    """GPUs of a node by their type, of a list such as gpu:h100:4(S:0-1),nvme:1."""
    gpus: Counter[str] = Counter()
    for part in re.sub(r"\([^)]*\)", "", gres).split(","):
        kind, *rest = part.split(":")
        if kind == "gpu" and rest and rest[-1].isdecimal():
            gpus[" ".join(rest[:-1])] += int(rest[-1])
    return gpus


def _accounting(answer: Answer, profile: dict[str, Any] | None) -> Check:
    wanted = (profile or {}).get("slurm-status-command")
    if answer.problem is None:
        asked = f"; the profile asks {wanted}" if wanted else ""
        return Check("Slurm accounting", f"sacct answers{asked}", do="slurm-status-command may be sacct or squeue")
    do = "slurm-status-command: squeue in the profile; with sacct Snakemake would never see a job end"
    bad = profile is not None and profile.get("executor") == "slurm" and wanted != "squeue"
    found = f"none: {answer.problem}" + (f"; the profile asks {wanted or 'sacct, the default'}" if profile else "")
    return Check("Slurm accounting", found, "error" if bad else "ok", do)


def _ended_jobs(accounting: Answer, profile: dict[str, Any] | None) -> Iterator[Check]:
    """Whether squeue still knows a job when the plugin looks for its end: what it never sees end, it waits for."""
    if profile is None or (profile.get("executor"), profile.get("slurm-status-command")) != ("slurm", "squeue"):
        return
    answer = ask(["scontrol", "show", "config"])
    told = re.search(r"^\s*MinJobAge\s*=\s*(\d+)", answer.output, re.M)
    kept_s = int(told[1]) if told else None
    if kept_s is not None and kept_s >= KEPT_S:
        yield Check("Slurm MinJobAge", f"squeue knows an ended job for {kept_s} s")
        return
    do = "ask the cluster's administrators for MinJobAge=300"
    if accounting.problem is None:
        do = "slurm-status-command: sacct in the profile"
    if told is None:
        yield cannot_tell("Slurm MinJobAge", answer, do)
    elif kept_s == 0:  # for ever, but the plugin takes it for too short and asks sacct
        verdict = "ok" if accounting.problem is None else "error"
        yield Check("Slurm MinJobAge", "0, for which Snakemake asks sacct instead of squeue", verdict, do)
    else:
        found = f"squeue forgets a job {kept_s} s after its end, Snakemake may look {LOOKS_S} s apart"
        yield Check("Slurm MinJobAge", found, "error" if kept_s <= LOOKS_S else "warning", do)


def _values(
    profile: dict[str, Any] | None, partitions: dict[str, list[Nodes]], accounting: Answer, fits: Fits | None
) -> Iterator[Check]:
    """Compare a profile's partitions and account with the cluster."""
    if profile is None:
        return
    if profile.get("executor") != "slurm":
        yield Check("profile", f"its executor is {profile.get('executor', 'local')}, not slurm", "warning")
        return
    if profile.get("slurm-no-requeue"):
        found = "slurm-no-requeue: Snakemake would wait for ever for a job that is preempted"
        yield Check("profile: requeue", found, "warning", "slurm-requeue: true instead")
    asked = {str(name) for name in _stated(profile, "slurm_partition") for name in str(name).split(",")}
    unknown = sorted(asked - partitions.keys())
    if unknown:
        do = f"slurm_partition in the profile: one of {', '.join(sorted(partitions)[:SHOWN])}"
        yield Check("profile: partition", f"not known to this Slurm: {', '.join(unknown)}", "error", do)
    elif asked and not any(node.up for name in asked for node in partitions[name]):
        found = f"{', '.join(sorted(asked))}: none of its nodes takes jobs (drained, down or not responding)"
        yield Check("profile: partition", found, "error", "another partition; `sinfo --list-reasons` says why")
    elif asked:
        yield Check("profile: partition", ", ".join(sorted(asked)))
    else:
        yield Check(
            "profile: partition", "none stated: Slurm's default", "warning", "state slurm_partition, one with GPUs"
        )
    if (qos := _qos(profile, accounting)) is not None:
        yield qos[0]
        partitions = {name: [_limited(node, qos[1]) for node in nodes] for name, nodes in partitions.items()}
    if not unknown:
        nodes = [node for name in asked or partitions for node in partitions[name]]
        yield from _cluster(profile, nodes)
        if fits is not None:
            yield from fits(profile, partitions)
    accounts = sorted({str(account) for account in _stated(profile, "slurm_account")})
    own = _associations("associations", f"user={getuser()}", "format=Account") if accounting.problem is None else []
    if accounts and own and (others := sorted(set(accounts) - {account for account, *_ in own})):
        do = f"slurm_account in the profile: one of {', '.join(sorted({account for account, *_ in own})[:SHOWN])}"
        yield Check("profile: account", f"not an account of yours: {', '.join(others)}", "error", do)
    elif accounts:
        yield Check("profile: account", ", ".join(accounts))
    elif accounting.problem is None:
        yield Check("profile: account", "none stated", "warning", "state slurm_account if the cluster bills by account")
    else:
        yield Check("profile: account", "none stated, and none needed without accounting")


def _associations(*what: str) -> list[list[str]]:
    """Rows of what Slurm's accounting knows; none where it does not answer."""
    answer = ask(["sacctmgr", "--noheader", "--parsable2", "show", *what])
    return [line.split("|") for line in answer.lines] if answer.problem is None else []


def _qos(profile: dict[str, Any], accounting: Answer) -> tuple[Check, float] | None:
    """Check the QOS of a profile, and give the longest job that it allows, in minutes; None without a QOS."""
    stated = sorted({*_stated(profile, "qos"), *filter(None, [str(profile.get("slurm-qos") or "")])})
    if not stated:
        return None
    rows = _associations("qos", "format=Name,MaxWall") if accounting.problem is None else []
    limits = {name: _minutes(limit) for name, limit in (row for row in rows if len(row) == 2)}
    if limits and (unknown := [name for name in stated if name not in limits]):
        do = f"slurm-qos in the profile: one of {', '.join(sorted(limits)[:SHOWN])}"
        return Check("profile: QOS", f"not known to this Slurm: {', '.join(unknown)}", "error", do), math.inf
    longest = min((limits.get(name, math.inf) for name in stated), default=math.inf)
    return Check("profile: QOS", ", ".join(stated)), longest


def _limited(node: Nodes, longest_min: float) -> Nodes:
    """The node, with the limit of a QOS if that is shorter."""
    return replace(node, limit_min=longest_min, limited_by="its QOS") if longest_min < node.limit_min else node


def _cluster(profile: dict[str, Any], nodes: list[Nodes]) -> Iterator[Check]:
    """Compare what the profile says of a node (config: cluster:) with the nodes of its partitions."""
    cluster = mapping_of(profile, "config").get("cluster")
    if not isinstance(cluster, dict):
        return
    said = {key: int(str(value)) for key, value in cluster.items() if str(value).isdecimal()}
    gpus, cpus, count = said.get("gpus_per_node", 0), said.get("cpus_per_node", 0), said.get("nodes", 0)
    fitting = sum(node.count for node in nodes if node.up and sum(node.gpus.values()) >= gpus and node.cpus >= cpus)
    told = f"{counted(count, 'node') if count else 'some nodes'} of {counted(gpus, 'GPU')} and {counted(cpus, 'CPU')}"
    if fitting >= max(count, 1):
        yield Check("profile: cluster", told)
    else:
        do = 'state under config: cluster: what `sinfo -o "%R %D %c %G"` lists'
        yield Check("profile: cluster", f"{told}, of which its partitions have {fitting}", "error", do)


def mapping_of(profile: dict[str, Any], key: str) -> dict[str, Any]:
    """A mapping of the profile, also where it is written as a list, as on the command line (`rule=group`)."""
    value = profile.get(key)
    if isinstance(value, list):
        return dict(str(entry).split("=", 1) for entry in value if "=" in str(entry))
    return value if isinstance(value, dict) else {}


def of_rule(profile: dict[str, Any], rule: str, name: str) -> int | None:
    """Amount of a resource that a profile states for a rule, in the place of what the rule asks for."""
    value = (mapping_of(profile, "set-resources").get(rule) or {}).get(name)
    return int(str(value)) if str(value).isdecimal() else None


def _stated(profile: dict[str, Any], name: str) -> Iterator[str]:
    """Values of a resource: of all jobs, and of single rules."""
    rules = profile.get("set-resources")
    blocks = [profile.get("default-resources"), *(rules.values() if isinstance(rules, dict) else [rules])]
    for block in blocks:
        if isinstance(block, dict):
            pairs = list(block.items())
        else:  # as on the command line: slurm_partition=gpu or rule:slurm_partition=gpu
            pairs = [str(entry).partition("=")[::2] for entry in (block if isinstance(block, list) else [])]
        for key, value in pairs:
            if str(key).rpartition(":")[2] == name and value not in (None, ""):
                yield str(value).strip("'\" ")
