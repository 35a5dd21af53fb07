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
from multicard.launch.supervise import Ended, in_profiler, run
from multicard.launch.variables import variables_of_ranks
from multicard.launch.watch import Limits, Ranks
from multicard.profilers import PROFILERS
from multicard.record.observe import observer_variables
from multicard.runs.parameters import JobParameters

# A job is started so often if its profiler fails before it has started the job; and if the profiler took long to fail,
# since the job was at work, or the profiler hung.
STARTS = 5
STARTS_AT_WORK = 2
FIRST_PROCESS = "first_process"  # file in the scratch folder with the id of the process that a profiler started first
# srun takes Slurm's variables for options. It gets only those that name the job, and Slurm's configuration if that is
# not in the usual place. Its tasks get all of theirs from it.
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
    limits: Limits | None = None,
) -> tuple[list[str], Ended]:
    """Run these ranks of this node to their end, sampling the node; return the command and how it ended.

    A job whose profiler fails by itself is started again. The time limit, in seconds, is that of all starts together.

    `profiler`: its name; `scratch`: folder with job.json, which the ranks write to; `on_line`: gets each line that the
    job prints; `rendezvous`: of a job on several nodes, where this one stands among them; `limits`: further limits of
    time, by default those of `run`.
    """
    work = WORKLOADS[p.workload]
    launching = work.launching(p)
    entry = PROFILERS[profiler]
    limits = limits or Limits()
    with node_folder() as temporary, ExitStack() as sampling:
        command = node_command(p, profiler, scratch, rendezvous)
        environment = variables_of_ranks(p, profiler, temporary)
        environment |= observer_variables(scratch, has_own_copy=work.is_user_program)
        environment |= work.environment(p, scratch, rendezvous)
        # Where each rank of a node has a task of its own, the task of the first one samples the GPUs.
        if p.device == "cuda" and ranks.start % p.ranks_per_node == 0:
            sampling.enter_context(sample_gpus(scratch / GPU_SAMPLES))
        if not launching.hidden_from_profilers:
            sampling.enter_context(sample_cpus(scratch / CPU_SAMPLES))
        first_process = scratch / FIRST_PROCESS if entry.node_file else None
        first_start_at = time.monotonic()
        failure = None
        start_count = 0
        while True:
            start_at = time.monotonic()
            ended = run(
                command, environment, log, first_start_at + time_limit_s - start_at, on_line,
                ranks=reported_ranks(scratch, ranks), first_process=first_process, folder=launching.folder,
                limits=limits,
            )  # fmt: skip
            now = time.monotonic()
            ended = replace(ended, profiler_failed_before=failure, wall_time_s=now - first_start_at)
            start_count += 1
            was_at_work = first_process is not None and first_process.exists()
            took_long = was_at_work or now - start_at > limits.unused_s
            most_starts = STARTS_AT_WORK if took_long else STARTS
            # Ranks of other nodes do not wait for those of this one once these have met.
            has_met_others = was_at_work and rendezvous is not None
            has_reported = any(scratch.glob("rank.json.rank*"))
            failure = None if ended.timed_out or has_reported else profiler_failure(entry, ended, log)
            if failure is None or has_met_others or start_count >= most_starts:
                return command, ended
            on_line(f"{PROGRESS}  {failure}; starting again")
            _clear(scratch)


def _clear(scratch: Path) -> None:
    """Remove the files of a job and its script before it is started again; the node's samples stay."""
    for pattern in (FIRST_PROCESS, "*.rank[0-9]*", f"{PROCESS}.*", "report*"):
        for file in scratch.glob(pattern):
            file.unlink()
    folder_of_script = Path(read_json(scratch / JOB)["keep"])
    if not folder_of_script.is_dir():
        return
    for entry in folder_of_script.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            entry.unlink()


def node_command(p: JobParameters, profiler: str, scratch: Path, rendezvous: Rendezvous | None = None) -> list[str]:
    """Return the command that runs the ranks of one node, under the profiler where that is a program."""
    work = WORKLOADS[p.workload]
    job = (scratch / JOB).absolute()
    command = work.command(p, job, rendezvous)
    if not command:
        ranks = p.ranks_per_node if p.distributed else 0
        command = training_command(work.program, ["--job", str(job)], ranks, rendezvous)
    entry = PROFILERS[profiler]
    if entry.node_file is None:
        return command
    wrapped = in_profiler(command, (scratch / FIRST_PROCESS).absolute())
    return entry.wrap(wrapped, (scratch / entry.node_file).absolute(), p.device)


def training_command(module: str, arguments: list[str], ranks: int, rendezvous: Rendezvous | None = None) -> list[str]:
    """Return the command that runs a module in `ranks` processes of this machine under torchrun.

    With 0 ranks it runs in one process, without torchrun.
    """
    torchrun = ["-m", "torch.distributed.run", *torchrun_options(ranks, rendezvous)] if ranks else []
    return [sys.executable, *torchrun, "-m", module, *arguments]


def reported_ranks(scratch: Path, ranks: range) -> Ranks:
    """Return a function that detects the end of the ranks' work, when each has left its record in `scratch`."""
    records = [scratch / rank_file("rank.json", rank) for rank in ranks]

    def process_ids() -> set[int] | None:
        if not all(record.exists() for record in records):
            return None
        return {read_json(record)["pid"] for record in records}

    return process_ids


def srun_command(p: JobParameters, job: Path) -> list[str]:
    """Return the command that runs `multicard.launch.node` on each node of this process's job of Slurm.

    Some launchers need it once for each rank. Tasks are numbered from the first node on. All are ended when one of them
    fails.
    """
    tasks = WORKLOADS[p.workload].launching(p).tasks_per_node
    gres = [f"--gres=gpu:{p.devices_per_node}"] if p.device == "cuda" else []
    return [
        "srun", f"--nodes={p.nodes}", f"--ntasks={p.nodes * tasks}", f"--ntasks-per-node={tasks}",
        "--distribution=block", f"--cpus-per-task={p.cpus_per_node // tasks}", *gres,
        "--kill-on-bad-exit=1", "--input=none", "--unbuffered",
        sys.executable, "-m", "multicard.launch.node", "--job", str(job),
    ]  # fmt: skip
