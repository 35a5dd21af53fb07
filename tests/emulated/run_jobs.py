"""Runs jobs one after the other: `python run_jobs.py REQUEST.json`.

Each job goes through `multicard.launch.job.run_job` to its measures. Where the request has `preload`, modules, the
ranks are forked from a process that has imported them; each is still a process of its own that runs the workload's
program as torchrun would start it, only without the seconds in which PyTorch is imported. Of each of its `jobs` the
request has `parameters`, `data`, `folder`, `model` and `program`, a module that takes the place of the workload's, or
null.
"""

import json
import multiprocessing
import os
import runpy
import sys
import time
import warnings
from collections.abc import Callable
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any
from unittest.mock import patch

from multicard.analysis.measures import measure_run
from multicard.core.files import write_json
from multicard.experiment.workload import WORKLOADS
from multicard.launch import job
from multicard.launch.process import Ended
from multicard.trace.export import export_run
from multicard.trace.extract import extract_run

RANKS = "--nproc-per-node="
FORKS = multiprocessing.get_context("forkserver")
TIME_LIMIT_S = 1800  # of a job; a busy machine must not end it


def main() -> None:
    """Run the jobs of the request; beside its record each run directory gets `measures.json`."""
    request = json.loads(Path(sys.argv[1]).read_text())
    if request["preload"]:
        FORKS.set_forkserver_preload(request["preload"])
        job.run = run_forked
    for stated in request["jobs"]:
        workload = WORKLOADS[stated["parameters"].get("workload", "vision")]
        parameters, folder = workload.parameters(**stated["parameters"]), Path(stated["folder"])
        model = Path(stated["model"]) if stated["model"] else None
        with patch.object(type(workload), "program", stated["program"] or workload.program):
            job.run_job(parameters, Path(stated["data"]), folder, TIME_LIMIT_S, model)
        export_run(folder)
        extract_run(folder)
        write_json(folder / "measures.json", measure_run(folder))


def run_forked(
    command: list[str],
    environment: dict[str, str],
    log: Path,
    time_limit_s: float,
    on_line: Callable[[str], None],
    *_others: Any,
) -> Ended:
    """Stand in for `multicard.launch.process.run`: start the ranks of a job as torchrun would."""
    import torch.distributed as dist

    counts = [int(part.removeprefix(RANKS)) for part in command if part.startswith(RANKS)]
    last = len(command) - 1 - command[::-1].index("-m")
    program = command[last + 1 :]
    log.touch()
    started, ranks = time.monotonic(), counts[0] if counts else 1
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False) if counts else None
    processes = []
    for rank in range(ranks):
        place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks} if store else {}
        if store:
            place |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": store.port, "TORCHELASTIC_USE_AGENT_STORE": True}
        variables = environment | {name: str(value) for name, value in place.items()}
        processes.append(FORKS.Process(target=run_rank, args=(program, variables, str(log.absolute()))))
        processes[-1].start()
    left = list(processes)
    while left and not any(process.exitcode for process in processes):
        if not wait([process.sentinel for process in left], started + time_limit_s - time.monotonic()):
            break
        left = [process for process in left if process.exitcode is None]
    for process in left:
        process.kill()
        process.join()
    code = next((process.exitcode for process in processes if process.exitcode), 0)
    for line in log.read_text().splitlines():
        on_line(line)
    timed_out = time.monotonic() - started > time_limit_s
    return Ended(code, timed_out, time.monotonic() - started)


def run_rank(program: list[str], environment: dict[str, str], log: str) -> None:
    """Be one rank: run the program as `python -m` does."""
    os.environ.clear()
    os.environ.update(environment)
    output = os.open(log, os.O_WRONLY | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    sys.argv = program
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*found in sys.modules", category=RuntimeWarning)
        runpy.run_module(program[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
