"""Compare the number of jobs that a profile submits at a time with Slurm's limits on the jobs of a user."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from multicard.core.system import ask
from multicard.core.text import listed
from multicard.launch.variables import user
from multicard.machine import Check

# Columns of sacctmgr ("man sacctmgr", LIST/SHOW FORMAT OPTIONS). A limit that is not set is empty.
SUBMITTED, RUNNING = "MaxSubmit", "MaxJobs"
SUBMITTED_OF_QOS, RUNNING_OF_QOS = "MaxSubmitPU", "MaxJobsPU"
ASSOCIATION_COLUMNS = ["Account", "Partition", "DefaultQOS", SUBMITTED, RUNNING]
QOS_COLUMNS = ["Name", SUBMITTED_OF_QOS, RUNNING_OF_QOS]


@dataclass(frozen=True)
class Partition:
    """A partition, as scontrol shows it."""

    name: str
    is_default: bool = False  # True if a job that names no partition runs there
    qos: str = ""  # its limits hold for all jobs of the partition; "" if it has none


@dataclass(frozen=True)
class Limit:
    """A limit on the number of a user's jobs.

    `owner`: the account or QOS that sets the limit, in words. `name`: the column of sacctmgr. `jobs`: the number.
    """

    owner: str
    name: str
    jobs: int

    @property
    def is_on_submitted(self) -> bool:
        """True if both queued and running jobs count; False if only running jobs do."""
        return self.name in (SUBMITTED, SUBMITTED_OF_QOS)


def check_jobs(jobs: int, partition: str, account: str, qos: str) -> Check | None:
    """Compare a profile's number of jobs at a time with Slurm's limits; warn if Slurm takes fewer.

    None if Slurm has no accounting, or if no limit is set. Only limits on submitted jobs can give a warning: more jobs
    than may run at a time just wait in the queue.

    `jobs`: the number that the profile states. `partition`, `account`, `qos`: of a job of the profile; empty for
    Slurm's defaults.
    """
    limits = list(_limits(partition, account, qos))
    if not limits:
        return None
    words = listed([f"{limit.owner}: {limit.name} {limit.jobs}" for limit in limits])
    on_submitted = [limit.jobs for limit in limits if limit.is_on_submitted]
    least = min(on_submitted, default=jobs)
    if least < jobs:
        excess = f"{jobs} at a time, and Slurm takes no more than {least} of yours ({words})"
        return Check("profile: jobs", excess, "warning", f"jobs: {least} in the profile; with more, some have to wait")
    return Check("profile: jobs", f"{jobs} at a time ({words})")


def _limits(partition: str, account: str, qos: str) -> Iterator[Limit]:
    """Yield the limits of the user's associations, of the job's QOS, and of the partition's QOS.

    Only associations with the account of the job count, and of those for one partition only that for the job's.
    Without `qos`, the job's QOS is the default of these associations.
    """
    partitions = _partitions(partition)
    if not partition:
        partition = next((entry.name for entry in partitions if entry.is_default), "")
    qos_of_partition = next((entry.qos for entry in partitions if entry.name == partition), "")
    qos_names = {qos, qos_of_partition} - {""}
    account = account or _default_account()
    for row in _rows("assoc", [f"user={user()}", f"cluster={_cluster()}"], ASSOCIATION_COLUMNS):
        has_account = row["Account"] == account
        has_partition = row["Partition"] in ("", partition)
        if has_account and has_partition:
            yield from _limits_in(row, f"account {account}", (SUBMITTED, RUNNING))
            if not qos:
                qos_names.add(row["DefaultQOS"])
    for row in _rows("qos", [], QOS_COLUMNS):
        if row["Name"] in qos_names:
            yield from _limits_in(row, f"QOS {row['Name']}", (SUBMITTED_OF_QOS, RUNNING_OF_QOS))


def _limits_in(row: Mapping[str, str], owner: str, names: tuple[str, ...]) -> Iterator[Limit]:
    """Yield the limits that are set in a row of sacctmgr."""
    for name in names:
        if row[name].isdecimal():
            yield Limit(owner, name, int(row[name]))


def _default_account() -> str:
    """Return the account of a job of the user that names no account; "" if it is not known."""
    rows = _rows("user", [user()], ["DefaultAccount"])
    return rows[0]["DefaultAccount"] if rows else ""


def _rows(entity: str, conditions: list[str], columns: list[str]) -> list[dict[str, str]]:
    """Return the rows that sacctmgr shows for an entity, such as "user"; no rows if there is no accounting."""
    columns_wanted = f"format={','.join(columns)}"
    answer = ask(["sacctmgr", "--noheader", "--parsable2", "show", entity, *conditions, columns_wanted])
    if answer.problem is not None:
        return []
    rows = []
    for line in answer.lines:
        cells = line.split("|")
        if len(cells) == len(columns):
            rows.append(dict(zip(columns, cells, strict=True)))
    return rows


def _cluster() -> str:
    """Return the name of this cluster, by which its associations are selected: several clusters may share accounting.

    "" if it is not known.
    """
    for line in ask(["scontrol", "show", "config"]).lines:
        if line.startswith("ClusterName"):
            return line.partition("=")[2].strip()
    return ""


def _partitions(name: str) -> list[Partition]:
    """Return the partition of this name; all partitions if the name is empty."""
    command = ["scontrol", "show", "partition"]
    if name:
        command.append(name)
    partitions: list[Partition] = []
    # Words such as Default=YES. Each PartitionName=… begins the words of another partition.
    for word in " ".join(ask(command).lines).split():
        key, _, value = word.partition("=")
        if key == "PartitionName":
            partitions.append(Partition(value))
        elif key == "Default" and partitions:
            is_default = value == "YES"
            partitions[-1] = replace(partitions[-1], is_default=is_default)
        elif key == "QoS" and partitions:
            qos = "" if value == "N/A" else value
            partitions[-1] = replace(partitions[-1], qos=qos)
    return partitions
