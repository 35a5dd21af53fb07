"""Check Slurm: its tools, partitions and accounting, and whether it would accept a job of a profile."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from multicard.core.errors import UserError
from multicard.core.system import Answer, ask
from multicard.core.text import counted, first_of
from multicard.machine import Check, Verdict
from multicard.machine.slurm_limits import check_jobs

# With --exact, sinfo prints a line for each kind of node. Without it, one line shows all as the smallest node.
PARTITIONS = ["sinfo", "--noheader", "--exact", "--format=%R|%a|%D|%G|%T"]
# A node takes no new jobs if its state contains one of these. "*" marks a node that does not respond.
UNUSABLE_STATES = ("drain", "down", "fail", "unk", "inval", "error", "maint", "*")
# A node whose state contains this takes jobs: Slurm has powered it down, and starts it for a job.
POWER_SAVING = "power"
# Snakemake's plugin for Slurm reads the states of jobs with this command. A Slurm without slurmdbd refuses it.
ACCOUNTING = ["sacct", "--allocations", "--noheader", "--parsable2", "--format=JobIDRaw"]
SHOWN_PARTITIONS = 8
# The rule of the workflow that starts runs.
RUN_RULE = "launch_run"


@dataclass(frozen=True)
class Nodes:
    """Nodes of a partition that are alike: their number, whether they take jobs, and the number of GPUs of each."""

    count: int
    is_up: bool
    gpus: int


Partitions = dict[str, list[Nodes]]

# Content of a Snakemake profile: options of Snakemake's command line, by their names.
Profile = Mapping[str, Any]


@dataclass(frozen=True)
class SlurmProfile:
    """What a profile for Slurm states about its jobs. A text is "", and a number 0, where Slurm's default holds."""

    jobs: int | None  # number of jobs at a time; None if the profile does not state it
    status_command: str  # by which Snakemake finds out that a job has ended
    partition: str
    account: str
    qos: str
    nodes: int
    gpus_per_node: int

    @classmethod
    def read(cls, profile: Profile) -> "SlurmProfile":
        """Read a profile. Raises `UserError` if it states resources as something else than a mapping."""
        job = {"qos": str(profile.get("slurm-qos") or "")} | resources_of(profile, RUN_RULE)
        jobs = str(profile.get("jobs", ""))
        config = profile.get("config")
        cluster = (config.get("cluster") if isinstance(config, dict) else None) or {}
        return cls(
            jobs=int(jobs) if jobs.isdecimal() else None,
            status_command=str(profile.get("slurm-status-command") or "sacct"),
            partition=job.get("slurm_partition", ""),
            account=job.get("slurm_account", ""),
            qos=job["qos"],
            nodes=_number(cluster.get("nodes")),
            gpus_per_node=_number(cluster.get("gpus_per_node")),
        )

    @property
    def options(self) -> list[str]:
        """The options of sbatch for a job of the profile."""
        stated = {"partition": self.partition, "account": self.account, "qos": self.qos, "nodes": self.nodes}
        options = [f"--{option}={value}" for option, value in stated.items() if value]
        if self.gpus_per_node:
            options.append(f"--gres=gpu:{self.gpus_per_node}")
        return options


def is_available() -> bool:
    """True if this machine has Slurm's tools, and Slurm's controller answers."""
    return ask(["sinfo", "--noheader", "--format=%R"]).problem is None


def checks(profile: Profile | None, demanded: bool = False) -> list[Check]:
    """Check Slurm, and the profile if there is one.

    `profile`: content of a Snakemake profile. `demanded`: True if the user named the profile. A missing Slurm is an
    error if the profile was named and is for Slurm, and otherwise a warning.
    """
    if_absent: Verdict = "error" if demanded and _is_for_slurm(profile) else "warning"
    version = ask(["sinfo", "--version"])
    if version.problem and "not on the PATH" in version.problem:
        return [Check("Slurm", "none here: sinfo is not on the PATH", if_absent, "profiles/local runs without Slurm")]
    number = re.search(r"\d+\.\d+[\w.-]*", version.output)
    if version.problem or number is None:
        problem = f"cannot tell: {version.problem or 'sinfo prints no version'}"
        return [Check("Slurm", problem, "warning", "reinstall slurm-client, or look on a node of the cluster")]
    tools = Check("Slurm", number[0])
    answer = ask(PARTITIONS)
    partitions = _partitions(answer)
    if answer.problem or not partitions:
        problem = f"cannot tell: {answer.problem or 'sinfo lists none'}"
        return [tools, Check("Slurm partitions", problem, if_absent, "look on a node of the cluster")]
    return [tools, _partitions_check(partitions), *_profile_checks(profile)]


def _is_for_slurm(profile: Profile | None) -> bool:
    return profile is not None and profile.get("executor") == "slurm"


def _partitions_check(partitions: Partitions) -> Check:
    listed = first_of([f"{name} ({_in_words(nodes)})" for name, nodes in partitions.items()], SHOWN_PARTITIONS)
    if any(node.gpus for nodes in partitions.values() for node in nodes):
        return Check("Slurm partitions", listed)
    return Check("Slurm partitions", listed, "warning", "no node declares GPUs (gres) to Slurm")


def _profile_checks(profile: Profile | None) -> list[Check]:
    if profile is None:
        return []
    if not _is_for_slurm(profile):
        return [Check("profile", f"its executor is {profile.get('executor', 'local')}, not slurm", "warning")]
    stated = SlurmProfile.read(profile)
    job_checks = [_accounting(stated.status_command), _submitted(stated.options)]
    jobs = None
    if stated.jobs is not None:
        jobs = check_jobs(stated.jobs, stated.partition, stated.account, stated.qos)
    return [*job_checks, jobs] if jobs else job_checks


def _partitions(answer: Answer) -> Partitions:
    """Return the nodes of each partition that sinfo lists, with one entry for each kind and state of node."""
    partitions: Partitions = {}
    for line in answer.lines:
        fields = [field.strip() for field in line.split("|")]
        if len(fields) != 5 or not fields[2].isdecimal():
            continue
        name, partition_state, count, gres, node_state = fields
        is_up = partition_state == "up" and _takes_jobs(node_state)
        partitions.setdefault(name, []).append(Nodes(int(count), is_up, _gpus_in(gres)))
    return partitions


def _takes_jobs(node_state: str) -> bool:
    if POWER_SAVING in node_state:
        return True
    return not any(state in node_state.lower() for state in UNUSABLE_STATES)


def _gpus_in(gres: str) -> int:
    """Return the number of GPUs in a list of generic resources.

    >>> _gpus_in("gpu:h100:4(S:0-1),nvme:1"), _gpus_in("gpu:2"), _gpus_in("(null)")
    (4, 2, 0)
    """
    return sum(map(int, re.findall(r"(?:^|,)gpu:(?:[^:,(]*:)*(\d+)", gres)))


def _in_words(nodes: list[Nodes]) -> str:
    """Return the number of nodes and their GPUs, such as "3 nodes of 4 or 8 GPUs"."""
    words = counted(sum(node.count for node in nodes), "node")
    gpu_counts = sorted({node.gpus for node in nodes if node.gpus})
    if gpu_counts:
        words += f" of {' or '.join(map(str, gpu_counts))} {'GPU' if gpu_counts == [1] else 'GPUs'}"
    if not any(node.is_up for node in nodes):
        words += ", not up"
    return words


def _accounting(status_command: str) -> Check:
    """Check that Snakemake can find out that a job has ended, with the command that the profile names."""
    accounting = ask(ACCOUNTING)
    answer = f"{accounting.problem or 'sacct answers'}; the profile asks {status_command}"
    if accounting.problem and status_command != "squeue":
        do = "slurm-status-command: squeue in the profile; with sacct Snakemake would never see a job end"
        return Check("Slurm accounting", answer, "error", do)
    return Check("Slurm accounting", answer)


def _submitted(options: list[str]) -> Check:
    """Check, without submitting a job, that Slurm would accept one with these options of sbatch."""
    answer = ask(["sbatch", "--test-only", *options, "--time=1", "--output=/dev/null", "--wrap=true"])
    if answer.problem is None:
        return Check("profile: job", f"Slurm would take one ({' '.join(options) or 'with its defaults'})")
    do = "slurm_partition, slurm_account and slurm-qos in the profile, and under config: cluster: what its nodes have"
    return Check("profile: job", f"with {' '.join(options) or 'its defaults'} {answer.problem}", "error", do)


def resources_of(profile: Profile, rule: str) -> dict[str, str]:
    """Return the resources of a rule in a profile: the defaults of all rules, replaced by those stated for this rule.

    >>> resources_of({"default-resources": {"slurm_partition": "gpu"}, "set-resources": {"a": {"mem_mb": 5}}}, "a")
    {'slurm_partition': 'gpu', 'mem_mb': '5'}

    Raises `UserError` if the profile states resources as something else than a mapping, such as a list.
    """
    by_rule = profile.get("set-resources") or {}
    of_rule = by_rule.get(rule) if isinstance(by_rule, dict) else by_rule
    resources: dict[str, str] = {}
    for stated in (profile.get("default-resources"), of_rule):
        if not isinstance(stated or {}, dict):
            raise UserError(f"profile: found the resources {stated!r}, expected a mapping of names to values")
        for name, value in (stated or {}).items():
            if value is not None:
                resources[str(name)] = str(value).strip("'\" ")
    return resources


def _number(stated: object) -> int:
    """Return a whole number that a profile states; 0 if it states none, or something else."""
    return int(str(stated)) if str(stated).isdecimal() else 0
