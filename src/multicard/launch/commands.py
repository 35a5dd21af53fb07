"""Command lines of a training job, and how to tell that its ranks are done."""

import sys
from pathlib import Path

from multicard.core.files import read_json
from multicard.core.layout import JOB, rank_file
from multicard.core.rendezvous import Rendezvous, torchrun_options
from multicard.experiment.parameters import JobParameters
from multicard.experiment.workload import WORKLOADS
from multicard.launch.process import LEFT_S, Watched
from multicard.profilers import PROFILERS


def training_command(
    module: str, arguments: list[str], ranks: int, distributed: bool, rendezvous: Rendezvous | None = None
) -> list[str]:
    """Command that runs a module in one process, or under torchrun in `ranks` processes of this machine.

    `rendezvous`: of a job on several nodes, which of them this machine is.
    """
    torchrun = ["-m", "torch.distributed.run", *torchrun_options(ranks, rendezvous)] if distributed else []
    return [sys.executable, *torchrun, "-m", module, *arguments]


def node_command(
    parameters: JobParameters, profiler: str, scratch: Path, rendezvous: Rendezvous | None = None
) -> list[str]:
    """Command that runs the ranks of one node, under the profiler where that is a program."""
    work, job, entry = WORKLOADS[parameters.workload], (scratch / JOB).absolute(), PROFILERS[profiler]
    command = work.command(parameters, job, rendezvous) or training_command(
        work.program,
        ["--job", str(job)],
        parameters.ranks_per_node,
        distributed=parameters.distributed,
        rendezvous=rendezvous,
    )
    if entry.node_file is None:
        return command
    return entry.wrap(Watched.within(command), (scratch / entry.node_file).absolute(), parameters.device)


def watched_ranks(profiler: str, scratch: Path, ranks: range) -> Watched:
    """The job as these ranks, each of which leaves its record in `scratch`.

    What they leave running is ended.
    """
    entry = PROFILERS[profiler]
    records = [scratch / rank_file("rank.json", rank) for rank in ranks]

    def processes() -> dict[int, int] | None:
        if not all(path.exists() for path in records):
            return None
        return {record["pid"]: record.get("ppid", 0) for record in map(read_json, records)}

    return Watched(processes, LEFT_S, entry.node_file is not None, entry.never_started)
