"""How many jobs of a user Slurm takes at a time, where it has accounting, against the number that a profile submits."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from multicard.core.system import ask
from multicard.core.text import listed
from multicard.launch.variables import user
from multicard.machine import Check

# "man sacctmgr", LIST/SHOW FORMAT OPTIONS. Limits that are not set are empty.
OF_USER = ["Account", "Partition", "DefaultQOS", "MaxSubmit", "MaxJobs"]
OF_QOS = ["Name", "MaxSubmitPU", "MaxJobsPU"]


class Limit(NamedTuple):
    """A limit on the jobs of a user: on those that are queued or running, or on those that are running."""

    of: str
    name: str
    jobs: int


def check_jobs(profile: Mapping[str, Any], partition: str, account: str, qos: str) -> Check | None:
    """Hold the number of jobs of a profile against Slurm's limits; None where there is no accounting, or no limit.

    `partition`, `account`, `qos`: of a job of the profile; empty for Slurm's defaults.
    """
    stated = str(profile.get("jobs", ""))
    if not stated.isdecimal():
        return None
    limits = list(_limits(partition, account, qos))
    submitted = [limit for limit in limits if limit.name.startswith("MaxSubmit")]
    least = min((limit.jobs for limit in submitted), default=None)
    told = listed([f"{limit.of}: {limit.name} {limit.jobs}" for limit in limits])
    if least is not None and least < int(stated):
        found = f"{stated} at a time, and Slurm takes no more than {least} of yours ({told})"
        return Check("profile: jobs", found, "warning", f"jobs: {least} in the profile; with more, some have to wait")
    return Check("profile: jobs", f"{stated} at a time ({told})") if limits else None


def _limits(partition: str, account: str, qos: str) -> Iterator[Limit]:
    """Yield the limits of the user's association, and of the QOS of its jobs and of the partition."""
    names = set(filter(None, [qos, _qos_of_partition(partition)]))
    account = account or next((row["DefaultAccount"] for row in _shown("user", ["DefaultAccount"])), "")
    for row in _shown("assoc", OF_USER):
        if row["Account"] == account and row["Partition"] in ("", partition):
            yield from _set(f"account {account}", row, OF_USER[3:])
            if not qos:
                names.add(row["DefaultQOS"])
    for row in _shown("qos", OF_QOS):
        if row["Name"] in names:
            yield from _set(f"QOS {row['Name']}", row, OF_QOS[1:])


def _set(of: str, row: Mapping[str, str], names: list[str]) -> Iterator[Limit]:
    for name in names:
        if row[name].isdecimal():
            yield Limit(of, name, int(row[name]))


def _shown(kind: str, fields: list[str]) -> list[dict[str, str]]:
    """Return what sacctmgr lists of this user and cluster, or of all QOS; nothing where there is no accounting."""
    which = {"user": [user()], "assoc": [f"user={user()}", f"cluster={_cluster()}"], "qos": []}[kind]
    answer = ask(["sacctmgr", "--noheader", "--parsable2", "show", kind, *which, f"format={','.join(fields)}"])
    rows = [line.split("|") for line in answer.lines] if answer.problem is None else []
    return [dict(zip(fields, row, strict=True)) for row in rows if len(row) == len(fields)]


def _cluster() -> str:
    """Return the name of this cluster: several may share their accounting."""
    lines = ask(["scontrol", "show", "config"]).lines
    return next((line.partition("=")[2].strip() for line in lines if line.startswith("ClusterName")), "")


def _qos_of_partition(partition: str) -> str:
    """Return the name of the QOS whose limits hold for all jobs of a partition, if it has one."""
    lines = ask(["scontrol", "show", "partition", *([partition] if partition else [])]).lines
    words = [word for line in lines for word in line.split()]
    found = next((word.partition("=")[2] for word in words if word.startswith("QoS=")), "")
    return "" if found == "N/A" else found
