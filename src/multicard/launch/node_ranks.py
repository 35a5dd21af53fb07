"""Run the ranks of one node while sampling the node; and the srun command that does so on several nodes."""

import shutil
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from multicard.core.files import read_json
from multicard.core.job_file import read_job
from multicard.core.layout import CPU_SAMPLES, GPU_SAMPLES, JOB, PROCESS, PROGRESS, rank_file
from multicard.core.rendezvous import Rendezvous
from multicard.launch import start
from multicard.launch.cpu_samples import sample_cpus
from multicard.launch.gpu_samples import sample_gpus
from multicard.launch.judge import profiler_failure
from multicard.launch.node_folder import node_folder
from multicard.launch.supervise import Ended, in_profiler, run
from multicard.launch.variables import variables_of_ranks
from multicard.launch.watch import Limits, Ranks
from multicard.launchers import LAUNCHERS
from multicard.observe import observer_variables
from multicard.profilers import PROFILERS
from multicard.runs.parameters import JobParameters

# A job whose profiler fails is started at most `STARTS` times; but at most `STARTS_AT_WORK` times if the failure took
# long, because the profiler had started the job or had hung.
STARTS = 5
STARTS_AT_WORK = 2
# A file in the scratch folder with the id of the first process of a job that a profiler starts.
FIRST_PROCESS = "first_process"
# Variables that srun does not get, because it reads Slurm's variables as options. It gets only those that name the job
# and the file of Slurm's configuration. srun itself sets all of these variables for its tasks.
NOT_FOR_SRUN = LAUNCHERS["srun"].withheld


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
    """Run `ranks`, all of this node or some of them, and sample the node; return the command and how it ended.

    If the profiler fails before any rank has reported, the job is started again. `time_limit_s` limits the seconds of
    all starts together.

    `profiler`: its name. `scratch`: folder with job.json, which the ranks write to. `on_line`: called with each line
    that the job prints. `rendezvous`: the place of this node among those of a job on several nodes; None for a job on
    one node. `limits`: further time limits, by default those of `run`.
    """
    command_of_rank = start.rank_command(p, read_job(scratch / JOB).paths)
    launcher = LAUNCHERS[p.launched_by]
    entry = PROFILERS[profiler]
    limits = limits or Limits()
    with node_folder() as temporary, ExitStack() as sampling:
        ranks_command = start.start_command(p, command_of_rank, rendezvous)
        command = _under_profiler(ranks_command, p, profiler, scratch)
        environment = variables_of_ranks(p, command_of_rank, profiler, temporary)
        environment |= observer_variables(scratch)
        environment |= start.environment(p, command_of_rank, rendezvous)
        # If each rank has a Slurm task of its own, only the task of the first rank on a node samples the GPUs.
        if p.device == "cuda" and ranks.start % p.ranks_per_node == 0:
            sampling.enter_context(sample_gpus(scratch / GPU_SAMPLES))
        if not launcher.hidden_from_profilers:
            sampling.enter_context(sample_cpus(scratch / CPU_SAMPLES))
        first_process = scratch / FIRST_PROCESS if entry.node_file else None
        first_start_at = time.monotonic()
        failure = None
        start_count = 0
        while True:
            start_at = time.monotonic()
            ended = run(
                command, environment, log, first_start_at + time_limit_s - start_at, on_line,
                ranks=reported_ranks(scratch, ranks), first_process=first_process,
                folder=command_of_rank.folder,
                limits=limits,
            )  # fmt: skip
            now = time.monotonic()
            ended = replace(ended, profiler_failed_before=failure, wall_time_s=now - first_start_at)
            start_count += 1
            was_at_work = first_process is not None and first_process.exists()
            took_long = was_at_work or now - start_at > limits.unused_s
            most_starts = STARTS_AT_WORK if took_long else STARTS
            # A job on several nodes cannot be started again on one node once the ranks may have met: those of other
            # nodes would not wait for the new ones.
            has_met_others = was_at_work and rendezvous is not None
            has_reported = any(scratch.glob("rank.json.rank*"))
            # None if the profiler did not fail: any other failure of the job is a result.
            failure = None if ended.timed_out or has_reported else profiler_failure(entry, ended, log)
            if failure is None or has_met_others or start_count >= most_starts:
                return command, ended
            on_line(f"{PROGRESS}  {failure}; starting again")
            _clear(scratch)


def _clear(scratch: Path) -> None:
    """Remove the files that the ranks, the profiler and the script wrote, before the job is started again.

    job.json and the samples of the node stay.
    """
    for pattern in (FIRST_PROCESS, "*.rank[0-9]*", f"{PROCESS}.*", "report*"):
        for file in scratch.glob(pattern):
            file.unlink()
    folder_of_script = read_job(scratch / JOB).saved
    if folder_of_script is None or not folder_of_script.is_dir():
        return
    for entry in folder_of_script.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            entry.unlink()


def _under_profiler(command: list[str], p: JobParameters, profiler: str, scratch: Path) -> list[str]:
    """Return a command that runs `command` under the profiler; `command` itself unless the profiler wraps a job."""
    entry = PROFILERS[profiler]
    if entry.node_file is None:
        return command
    wrapped = in_profiler(command, (scratch / FIRST_PROCESS).absolute())
    return entry.wrap(wrapped, (scratch / entry.node_file).absolute(), p.device)


def reported_ranks(scratch: Path, ranks: range) -> Ranks:
    """Return a function that returns the process ids of `ranks` once each has written its rank.json; None before."""
    records = [scratch / rank_file("rank.json", rank) for rank in ranks]

    def process_ids() -> set[int] | None:
        if not all(record.exists() for record in records):
            return None
        return {read_json(record)["pid"] for record in records}

    return process_ids


def srun_command(p: JobParameters, job: Path) -> list[str]:
    """Return the command that runs `multicard.launch.node` on each node of the Slurm job that this process is part of.

    It runs once per node, or once per rank for launchers that want that (`tasks_per_node`). Tasks are numbered from 0,
    those of the first node first. srun ends all tasks when one of them exits with an error.
    """
    tasks = start.tasks_per_node(p)
    gres = [f"--gres=gpu:{p.devices_per_node}"] if p.device == "cuda" else []
    return [
        "srun", f"--nodes={p.nodes}", f"--ntasks={p.nodes * tasks}", f"--ntasks-per-node={tasks}",
        "--distribution=block", f"--cpus-per-task={p.cpus_per_node // tasks}", *gres,
        "--kill-on-bad-exit=1", "--input=none", "--unbuffered",
        sys.executable, "-m", "multicard.launch.node", "--job", str(job),
    ]  # fmt: skip
