"""Start the ranks of one node, sampling the node meanwhile; several nodes are started by srun."""

import shutil
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from multicard.core.files import read_json
from multicard.core.layout import CPU_SAMPLES, GPU_SAMPLES, JOB, PROCESS, PROGRESS, rank_file
from multicard.core.rendezvous import Rendezvous, torchrun_options
from multicard.experiment.workload import WORKLOADS
from multicard.launch.cpu_samples import sample_cpus
from multicard.launch.gpu_samples import sample_gpus
from multicard.launch.judge import profiler_failure
from multicard.launch.node_folder import node_folder
from multicard.launch.supervise import UNUSED_S, Ended, Ranks, in_profiler, run
from multicard.launch.variables import variables_of_ranks
from multicard.profilers import PROFILERS
from multicard.record.observe import observer_variables
from multicard.runs.parameters import JobParameters

STARTS = 5  # of a profiler that fails before it has started the job
STARTS_AT_WORK = 2  # where one took long to fail: the job was at work, or it hung
FIRST_PROCESS = "first_process"  # file in the scratch folder: the process that a profiler has started the job by
# srun takes Slurm's variables for options, so it gets no others than those that say which job this is, and where
# Slurm's configuration is if not in the usual place. Its tasks get all of theirs from it.
NOT_FOR_SRUN = r"SLURM_(?!(JOB_ID|CLUSTER_NAME|CONF)$).*"


def run_ranks(
    p: JobParameters,
    profiler: str,
    scratch: Path,
    log: Path,
    time_limit_s: float,
    on_line: Callable[[str], None],
    ranks: range,
    rendezvous: Rendezvous | None = None,
) -> tuple[list[str], Ended]:
    """Run these ranks of this node to their end; give the command and how it ended.

    `rendezvous`: of a job on several nodes, which of them this machine is.
    """
    work = WORKLOADS[p.workload]
    launching = work.launching(p)
    with node_folder() as temporary, ExitStack() as stack:
        command = node_command(p, profiler, scratch, rendezvous)
        environment = variables_of_ranks(p, profiler, temporary)
        environment |= observer_variables(scratch, has_own_copy=work.is_user_program)
        environment |= work.environment(p, scratch, rendezvous)
        if p.device == "cuda" and ranks.start % p.ranks_per_node == 0:  # else the task of another rank does
            stack.enter_context(sample_gpus(scratch / GPU_SAMPLES))
        if not launching.hidden_from_profilers:
            stack.enter_context(sample_cpus(scratch / CPU_SAMPLES))
        entry, started = PROFILERS[profiler], time.monotonic()
        first_process = scratch / FIRST_PROCESS if entry.node_file else None
        failure, starts = None, 0
        while True:
            begun = time.monotonic()
            ended = run(
                command, environment, log, started + time_limit_s - begun, on_line,
                ranks=reported_ranks(scratch, ranks), first_process=first_process, folder=launching.folder,
            )  # fmt: skip
            now = time.monotonic()
            ended = replace(ended, profiler_failed_before=failure, wall_time_s=now - started)
            starts += 1
            was_at_work = first_process is not None and first_process.exists()
            # Ranks of other nodes do not wait for those of this one once these have met.
            is_joined = was_at_work and rendezvous is not None
            most = STARTS_AT_WORK if was_at_work or now - begun > UNUSED_S else STARTS
            has_reported = any(scratch.glob(rank_file("rank.json", "*")))
            failure = None if ended.timed_out or has_reported else profiler_failure(entry, ended, log)
            if failure is None or is_joined or starts >= most:
                return command, ended
            on_line(f"{PROGRESS}  {failure}; starting again")
            _clear(scratch)


def _clear(scratch: Path) -> None:
    """Remove what a job and its script left, before it is started again; the node goes on being sampled."""
    for pattern in (FIRST_PROCESS, "*.rank[0-9]*", f"{PROCESS}.*", "report*"):
        for leftover in scratch.glob(pattern):
            leftover.unlink()
    kept = Path(read_json(scratch / JOB)["keep"])
    for leftover in kept.iterdir() if kept.is_dir() else []:
        if leftover.is_dir() and not leftover.is_symlink():
            shutil.rmtree(leftover, ignore_errors=True)
        else:
            leftover.unlink()


def node_command(p: JobParameters, profiler: str, scratch: Path, rendezvous: Rendezvous | None = None) -> list[str]:
    """Command that runs the ranks of one node, under the profiler where that is a program."""
    work, job, entry = WORKLOADS[p.workload], (scratch / JOB).absolute(), PROFILERS[profiler]
    command = work.command(p, job, rendezvous) or training_command(
        work.program, ["--job", str(job)], p.ranks_per_node if p.distributed else 0, rendezvous
    )
    if entry.node_file is None:
        return command
    return entry.wrap(
        in_profiler(command, (scratch / FIRST_PROCESS).absolute()), (scratch / entry.node_file).absolute(), p.device
    )


def training_command(module: str, arguments: list[str], ranks: int, rendezvous: Rendezvous | None = None) -> list[str]:
    """Command that runs a module in `ranks` processes of this machine under torchrun, or with 0 in one without it."""
    torchrun = ["-m", "torch.distributed.run", *torchrun_options(ranks, rendezvous)] if ranks else []
    return [sys.executable, *torchrun, "-m", module, *arguments]


def reported_ranks(scratch: Path, ranks: range) -> Ranks:
    """How to tell that ranks are done: each leaves its record in `scratch`."""
    records = [scratch / rank_file("rank.json", rank) for rank in ranks]

    def processes() -> set[int] | None:
        return {record["pid"] for record in map(read_json, records)} if all(map(Path.exists, records)) else None

    return processes


def srun_command(p: JobParameters, job: Path) -> list[str]:
    """Command that runs `multicard.launch.node` on each node of this process's job of Slurm, or once for each rank.

    Numbers of tasks are those of the first node, then those of the next. All are ended when one of them is.
    """
    tasks = WORKLOADS[p.workload].launching(p).tasks_per_node
    gres = [f"--gres=gpu:{p.devices_per_node}"] if p.device == "cuda" else []
    return [
        "srun", f"--nodes={p.nodes}", f"--ntasks={p.nodes * tasks}", f"--ntasks-per-node={tasks}",
        "--distribution=block", f"--cpus-per-task={p.cpus_per_node // tasks}", *gres,
        "--kill-on-bad-exit=1", "--input=none", "--unbuffered",
        sys.executable, "-m", "multicard.launch.node", "--job", str(job),
    ]  # fmt: skip
