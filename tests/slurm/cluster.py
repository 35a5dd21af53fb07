"""A throw-away Slurm cluster on this machine, as root.

Its nodes are several slurmd on one host, its GPUs are character devices that do what /dev/null does. Slurm counts and
assigns them as real ones; no CUDA program finds one.
"""

import contextlib
import os
import re
import shutil
import socket
import subprocess
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import psutil
from filelock import FileLock

# The place that Debian's Slurm is built for. SLURM_CONF will not do: Snakemake's job step takes it out of the
# environment in which it starts srun.
CONFIGURATION = Path("/etc/slurm")
MARK = "# Made by multicard's tests: a throw-away cluster.\n"
PORTS = range(16817, 18000, 20)  # first ports: not Slurm's own, and below those that a system gives to anyone
NODES = 2  # of a partition
GPUS, CPUS = 4, 16  # of a node
# Whether jobs are held to the memory that they ask for.
MEMORY_CGROUPS = os.access("/sys/fs/cgroup/memory/cgroup.procs", os.W_OK)
NULL_DEVICE = os.makedev(1, 3)
START_LIMIT_S = 300.0
OTHERS_LIMIT_S, END_LIMIT_S, AWAY_LIMIT_S = 3600.0, 30.0, 120.0
MUNGE_PID = Path("/run/munge/munged.pid")
OWN_MUNGE = "own-munge"  # in the folder of the cluster: the id of the munged that it started


class NoCluster(Exception):
    """A cluster cannot be started here; the message says why."""


@contextlib.contextmanager
def shared(place: Path, partitions: Mapping[str, int]) -> Iterator[Path]:
    """Give the folder of a cluster that the processes which share `place` have in common; the last one ends it.

    `partitions`: as of `up`.
    """
    users = place / "users-of-slurm"
    users.mkdir(exist_ok=True)
    own, folder, lock = users / str(os.getpid()), place / "slurm", FileLock(place / "slurm.lock")

    def others() -> bool:
        return any(psutil.pid_exists(int(user.name)) for user in users.iterdir() if user != own)

    with lock:
        if not others():
            if folder.exists():  # of processes that were killed
                down(folder)
                shutil.rmtree(folder)
            up(folder, partitions)
        own.touch()
    try:
        yield folder
    finally:
        with lock:
            own.unlink()
            if not others():
                down(folder)


def up(folder: Path, partitions: Mapping[str, int]) -> None:
    """Start a cluster whose state lies in `folder`, and wait until its nodes are idle.

    `partitions`: megabytes of memory of a node, by partition. Each has two nodes of its own; n1 is the first of all.
    """
    refuse()
    wait_for(lambda: not is_in_use(), "a cluster of other tests on this machine to end", OTHERS_LIMIT_S)
    # Its configuration goes last, unless it was killed.
    wait_for(lambda: not (CONFIGURATION / "slurm.conf").exists(), "its configuration to go", END_LIMIT_S, or_else=False)
    nodes = NODES * len(partitions)
    devices = [folder / "dev" / f"nvidia{number}" for number in range(GPUS)]
    for place in ("dev", "state", "log", *(f"spool-n{number}" for number in range(1, nodes + 1))):
        (folder / place).mkdir(parents=True, exist_ok=True)
    for device in devices:
        try:
            os.mknod(device, 0o666 | 0o020000, NULL_DEVICE)
        except PermissionError as error:
            raise NoCluster("this machine lets nobody make device files") from error
        except FileExistsError:
            pass
    CONFIGURATION.mkdir(exist_ok=True)
    for name, text in configuration(folder, partitions, devices).items():
        (CONFIGURATION / name).write_text(MARK + text)
    start_munge(folder)
    try:
        call("slurmctld")
        for number in range(1, nodes + 1):
            start_node(f"n{number}")
        wait_for(lambda: idle() == nodes, "the nodes of the cluster to be idle")
    except BaseException:
        down(folder)
        raise


def refuse() -> None:
    """Raise `NoCluster` with the reason if no cluster can be started here."""
    if os.geteuid() != 0:
        raise NoCluster("needs root, to start Slurm's services")
    missing = [name for name in ("slurmctld", "slurmd", "srun", "sbatch", "munged") if shutil.which(name) is None]
    if missing:
        raise NoCluster(f"needs {', '.join(missing)} on the PATH (envs/install-slurm.sh)")
    for name in ("slurm.conf", "gres.conf", "cgroup.conf"):
        path = CONFIGURATION / name
        if path.exists() and not path.read_text().startswith(MARK):
            raise NoCluster(f"{path} is there already and not a test's: this machine has a Slurm of its own")


def is_in_use() -> bool:
    """Whether the cluster that is configured on this machine is at work, and so another test's."""
    path = CONFIGURATION / "slurm.conf"
    found = re.search(r"^SlurmctldPidFile=(.+)$", path.read_text(), re.MULTILINE) if path.exists() else None
    try:
        return found is not None and psutil.Process(int(Path(found[1]).read_text())).name() == "slurmctld"
    except (OSError, ValueError, psutil.Error):
        return False


def configuration(folder: Path, partitions: Mapping[str, int], devices: list[Path]) -> dict[str, str]:
    """Text of each of Slurm's files."""
    # slurmd before 23.02 ends where it finds no usable cgroup, unless it is told of a version.
    version = subprocess.run(["slurmctld", "-V"], capture_output=True, text=True, check=True).stdout.split()[-1]
    old = tuple(map(int, version.split(".")[:2])) < (23, 2)
    host, port = socket.gethostname().partition(".")[0], first_port(NODES * len(partitions) + 1)
    lines = [
        f"ClusterName={name_of(folder)}",
        f"SlurmctldHost={host}(127.0.0.1)",
        f"SlurmctldPort={port}",
        "SlurmUser=root",
        "SlurmdUser=root",
        "AuthType=auth/munge",
        f"StateSaveLocation={folder}/state",
        f"SlurmdSpoolDir={folder}/spool-%n",
        f"SlurmctldPidFile={folder}/slurmctld.pid",
        f"SlurmdPidFile={folder}/slurmd-%n.pid",
        f"SlurmctldLogFile={folder}/log/slurmctld.log",
        f"SlurmdLogFile={folder}/log/slurmd-%n.log",
        "SlurmdParameters=config_overrides",  # a node may claim more than the machine has
        "ProctrackType=proctrack/linuxproc",
        f"TaskPlugin={'task/cgroup' if old and MEMORY_CGROUPS else 'task/none'}",
        "MpiDefault=none",
        "SelectType=select/cons_tres",
        "SelectTypeParameters=CR_Core_Memory",
        "AccountingStorageType=accounting_storage/none",
        "GresTypes=gpu",
        "MinJobAge=3600",  # ended jobs stay in squeue for as long, and without accounting nowhere else
        "SlurmdTimeout=20",  # a node that is silent for as long is lost: not one that only is busy
        "ReturnToService=2",
        "SchedulerParameters=sched_min_interval=0,sched_interval=2,bf_interval=2,batch_sched_delay=0",
        "PreemptType=preempt/partition_prio",  # a job of `urgent` that finds no free CPU ends jobs of the others
        "PreemptMode=CANCEL",
    ]
    of_partitions = {"urgent": f"n[1-{NODES * len(partitions)}]"}
    for place, (name, memory_mb) in enumerate(partitions.items()):
        first = NODES * place + 1
        lines += [
            f"NodeName=n{number} NodeHostname={host} NodeAddr=127.0.0.1 Port={port + number} CPUs={CPUS} "
            f"RealMemory={memory_mb} Gres=gpu:{GPUS} State=UNKNOWN"
            for number in range(first, first + NODES)
        ]
        of_partitions[name] = f"n[{first}-{first + NODES - 1}]"
    lines += [
        f"PartitionName={name} Nodes={nodes} Default={'YES' if name in [*partitions][:1] else 'NO'} "
        f"PriorityTier={2 if name == 'urgent' else 1} MaxTime=60 DefMemPerCPU=100 State=UP"
        for name, nodes in of_partitions.items()
    ]
    return {
        "slurm.conf": "\n".join(lines) + "\n",
        "gres.conf": "".join(f"Name=gpu File={device}\n" for device in devices),
        "cgroup.conf": f"CgroupPlugin={'cgroup/v1' if old else 'disabled'}\nConstrainRAMSpace=yes\n",
    }


def first_port(count: int) -> int:
    """First of so many ports on which nothing listens."""
    for first in PORTS:
        with contextlib.ExitStack() as probes:
            try:
                for port in range(first, first + count):
                    probe = probes.enter_context(socket.socket())
                    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    probe.bind(("", port))
            except OSError:
                continue
            return first
    raise NoCluster(f"no {count} free ports in a row from {PORTS.start} to {PORTS.stop}")


def name_of(folder: Path) -> str:
    """Name of the cluster, which no other one has: by it processes of its jobs are told."""
    return f"multicard-tests-{zlib.crc32(bytes(folder)):08x}"


def start_munge(folder: Path) -> None:
    """Start munged, by which Slurm's parts know each other, unless it is at work."""
    if subprocess.run(["munge", "-n"], capture_output=True, check=False).returncode == 0:
        return
    MUNGE_PID.parent.mkdir(exist_ok=True)
    shutil.chown(MUNGE_PID.parent, "munge", "munge")
    MUNGE_PID.parent.chmod(0o755)
    call("runuser", "-u", "munge", "--", "munged")
    works = ["munge", "-n"]
    wait_for(lambda: subprocess.run(works, capture_output=True, check=False).returncode == 0, "munged to answer")
    (folder / OWN_MUNGE).write_text(MUNGE_PID.read_text())


def start_node(name: str) -> None:
    call("slurmd", "-N", name)


def lose_node(folder: Path, name: str) -> None:
    """Kill the slurmd of a node, the parts of jobs that run there, and what looks after them."""
    doomed = [psutil.Process(int((folder / f"slurmd-{name}.pid").read_text()))]
    for process in psutil.process_iter():
        try:
            told = process.environ()
            there = (told.get("SLURM_CLUSTER_NAME"), told.get("SLURMD_NODENAME")) == (name_of(folder), name)
            if there:
                doomed.append(process)
            if there and process.parent() and process.parent().name() == "slurmstepd":
                step = process.parent()
                doomed += [step, *step.children(recursive=True)]
        except psutil.Error:
            continue
    for process in set(doomed):
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue


def down(folder: Path) -> None:
    """End the jobs and the services of the cluster, by their ids, and take its configuration away."""
    if is_configured(folder) and (folder / "slurmctld.pid").exists():
        subprocess.run(["scancel", "--user=root"], capture_output=True, check=False, timeout=300)
        wait_for(lambda: not jobs(), "the jobs of the cluster to end", or_else=False)
    kill_left(folder)
    files = [*folder.glob("slurmd-*.pid"), *folder.glob("slurmctld.pid"), *folder.glob(OWN_MUNGE)]
    end(int(file.read_text()) for file in files)
    for file in files:
        file.unlink(missing_ok=True)
    for name in ("slurm.conf", "gres.conf", "cgroup.conf") if is_configured(folder) else ():
        (CONFIGURATION / name).unlink(missing_ok=True)


def is_configured(folder: Path) -> bool:
    """Whether the configuration on this machine is that of a cluster, and not another test's by now."""
    path = CONFIGURATION / "slurm.conf"
    return path.exists() and name_of(folder) in path.read_text()


def kill_left(folder: Path) -> None:
    """Kill what ended jobs left.

    Slurm finds the processes of a job below its own (proctrack/linuxproc). On SIGTERM the shell of a job ends at once,
    and a Snakemake below it, then no longer found, is to end by itself. It may not: its handler of SIGTERM takes
    a lock that the thread which it interrupts may hold (snakemake.scheduling.job_scheduler).
    """
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("SLURM_CLUSTER_NAME") == name_of(folder):
                process.kill()


def end(pids: Iterable[int]) -> None:
    """End processes and wait until they are gone."""
    processes = []
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            process.terminate()
            processes.append(process)
    _, left = psutil.wait_procs(processes, timeout=20)
    for process in left:
        process.kill()


def idle() -> int:
    """Number of idle nodes."""
    return len(set(ask("sinfo", "--noheader", "--Node", "--states=idle", "--format=%N").split()))


def jobs(folder: Path | None = None) -> list[str]:
    """Ids of the jobs that wait, run or end, of all or of those that were submitted from a folder."""
    lines = ask("squeue", "--noheader", "--states=pending,running,completing,suspended", "--format=%i %Z").splitlines()
    found = [line.split(maxsplit=1) for line in lines]
    return [job for job, place in found if folder is None or place == str(folder)]


def ask(*command: str) -> str:
    """What a command prints; nothing where it fails.

    It waits for a controller that is away: a test stops and starts it while others ask.
    """
    deadline = time.monotonic() + AWAY_LIMIT_S
    while True:
        asked = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
        if "Unable to contact slurm controller" not in asked.stderr or time.monotonic() > deadline:
            return asked.stdout
        time.sleep(0.2)


def call(*command: str) -> None:
    """Start a service, which goes into the background by itself."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SLURM")}
    ended = subprocess.run(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        check=False, timeout=START_LIMIT_S,
    )  # fmt: skip
    if ended.returncode != 0:
        raise NoCluster(f"{command[0]} ended with {ended.returncode}")


def wait_for(condition: Callable[[], bool], what: str, limit_s: float = START_LIMIT_S, or_else: bool = True) -> None:
    """Wait for a condition; raise `TimeoutError` when it takes too long, unless told otherwise."""
    deadline = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline:
            if or_else:
                raise TimeoutError(f"waited {limit_s:g} s for {what}")
            return
        time.sleep(0.2)
