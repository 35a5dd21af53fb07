"""A throw-away Slurm cluster on this machine, as root: `python tests/slurm/cluster.py up FOLDER`, later `down FOLDER`.

Its nodes are several slurmd on one host, its GPUs are character devices that do what /dev/null does. Slurm counts and
assigns them as real ones; no CUDA program finds one.
"""

import argparse
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
import zlib
from collections.abc import Callable
from pathlib import Path

import psutil

# The place that Debian's Slurm is built for. SLURM_CONF will not do: Snakemake's job step takes it out of the
# environment in which it starts srun.
CONFIGURATION = Path("/etc/slurm")
MARK = "# Made by multicard's tests: a throw-away cluster.\n"
PORT = 16817  # not Slurm's own
NULL_DEVICE = os.makedev(1, 3)
START_LIMIT_S = 30.0
MUNGE_PID = Path("/run/munge/munged.pid")
OWN_MUNGE = "own-munge"  # in the folder of the cluster: the id of the munged that it started


class NoCluster(Exception):
    """A cluster cannot be started here; the message says why."""


def up(folder: Path, nodes: int = 1, gpus: int = 4, cpus: int = 16, memory_mb: int = 64_000) -> None:
    """Start a cluster whose state lies in `folder`, and wait until its nodes are idle.

    Raises
    ------
    NoCluster
        If Slurm is not installed, this is not root, or the machine has a Slurm of its own.
    """
    refuse()
    devices = [folder / "dev" / f"nvidia{number}" for number in range(gpus)]
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
    for name, text in configuration(folder, nodes, devices, cpus, memory_mb).items():
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


def configuration(folder: Path, nodes: int, devices: list[Path], cpus: int, memory_mb: int) -> dict[str, str]:
    """Text of each of Slurm's files."""
    host = socket.gethostname().partition(".")[0]
    lines = [
        f"ClusterName={name_of(folder)}",
        f"SlurmctldHost={host}(127.0.0.1)",
        f"SlurmctldPort={PORT}",
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
        "TaskPlugin=task/none",
        "MpiDefault=none",
        "SelectType=select/cons_tres",
        "SelectTypeParameters=CR_Core_Memory",
        "AccountingStorageType=accounting_storage/none",
        "GresTypes=gpu",
        "MinJobAge=300",  # ended jobs stay in squeue for as long, and without accounting nowhere else
        "SlurmdTimeout=10",  # a node that is silent for as long is lost
        "ReturnToService=2",
        "SchedulerParameters=sched_min_interval=0,sched_interval=5,bf_interval=5",
        "PreemptType=preempt/partition_prio",  # a job of `urgent` that finds no free CPU ends jobs of `gpu`
        "PreemptMode=CANCEL",
    ]
    gres = f" Gres=gpu:{len(devices)}" if devices else ""
    lines += [
        f"NodeName=n{number} NodeHostname={host} NodeAddr=127.0.0.1 Port={PORT + number} CPUs={cpus} "
        f"RealMemory={memory_mb}{gres} State=UNKNOWN"
        for number in range(1, nodes + 1)
    ]
    lines += [
        f"PartitionName={name} Nodes=n[1-{nodes}] Default={default} PriorityTier={tier} MaxTime=60 DefMemPerCPU=100 "
        "State=UP"
        for name, default, tier in (("gpu", "YES", 1), ("urgent", "NO", 2))
    ]
    # slurmd before 23.02 ends where it finds no usable cgroup, unless it is told of a version.
    version = subprocess.run(["slurmctld", "-V"], capture_output=True, text=True, check=True).stdout.split()[-1]
    old = tuple(map(int, version.split(".")[:2])) < (23, 2)
    return {
        "slurm.conf": "\n".join(lines) + "\n",
        "gres.conf": "".join(f"Name=gpu File={device}\n" for device in devices),
        "cgroup.conf": f"CgroupPlugin={'cgroup/v1' if old else 'disabled'}\n",
    }


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
    """Start the slurmd of a node."""
    call("slurmd", "-N", name)


def lose_node(name: str) -> None:
    """Kill the slurmd of a node, the parts of jobs that run there, and what looks after them."""
    doomed = []
    for process in psutil.process_iter(["name", "cmdline"]):
        try:
            there = process.environ().get("SLURMD_NODENAME") == name
            slurmd = process.info["name"] == "slurmd" and process.info["cmdline"][-1:] == [name]
            if there or slurmd:
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
    if (folder / "slurmctld.pid").exists():
        subprocess.run(["scancel", "--user=root"], capture_output=True, check=False, timeout=60)
        wait_for(lambda: not jobs(), "the jobs of the cluster to end", or_else=False)
        kill_left(folder)
    for file in [*folder.glob("slurmd-*.pid"), folder / "slurmctld.pid", folder / OWN_MUNGE]:
        if file.exists():
            end(int(file.read_text()))
            file.unlink(missing_ok=True)
    for name in ("slurm.conf", "gres.conf", "cgroup.conf"):
        path = CONFIGURATION / name
        if path.exists() and path.read_text().startswith(MARK):
            path.unlink()


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


def end(pid: int, how: int = signal.SIGTERM) -> None:
    """End a process and wait until it is gone."""
    try:
        process = psutil.Process(pid)
        process.send_signal(how)
        process.wait(timeout=20)
    except psutil.NoSuchProcess:
        pass
    except psutil.TimeoutExpired:
        process.kill()


def idle() -> int:
    """Number of idle nodes."""
    return len(set(ask("sinfo", "--noheader", "--Node", "--states=idle", "--format=%N").split()))


def jobs() -> list[str]:
    """Ids of the jobs that wait, run or end."""
    return ask("squeue", "--noheader", "--states=pending,running,completing,suspended", "--format=%i").split()


def ask(*command: str) -> str:
    """What a command prints; nothing where it fails."""
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60).stdout


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
    """Wait for a condition; raise `NoCluster` when it takes too long, unless told otherwise."""
    deadline = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline:
            if or_else:
                raise NoCluster(f"waited {limit_s:g} s for {what}")
            return
        time.sleep(0.2)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["up", "down"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--gpus", type=int, default=4, help="GPUs of a node")
    parser.add_argument("--cpus", type=int, default=16, help="CPUs of a node")
    parser.add_argument("--memory-mb", type=int, default=64_000, help="memory of a node")
    chosen = parser.parse_args()
    if chosen.what == "up":
        up(chosen.folder.absolute(), chosen.nodes, chosen.gpus, chosen.cpus, chosen.memory_mb)
    else:
        down(chosen.folder.absolute())
