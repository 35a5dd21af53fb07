"""The trace of a job in its run directory, or the reason why there is none."""

import shutil
import signal
from pathlib import Path

from multicard.core.errors import TraceError
from multicard.core.layout import LOG, node_files
from multicard.core.reasons import LONGEST_MESSAGE
from multicard.core.text import printable
from multicard.core.trace_manifests import Captured, TraceFile
from multicard.launch.judge import text_of
from multicard.launch.supervise import Ended
from multicard.profilers import PROFILERS
from multicard.runs.parameters import JobParameters


def keep_trace(
    scratch: Path,
    target: Path,
    profiler: str,
    outcome: str,
    parameters: JobParameters,
    ended: Ended | None = None,
    problem: str | None = None,
) -> str | None:
    """Move the files of the trace from `scratch` to `target`, and write their manifest; return why there are none.

    The return value is None if there is a trace. The manifest states the same as `missing`. There is a trace only if
    the run completed, no rank had a problem, and every file of every rank or node is there and passes its check.

    The manifest names the node of each file if there are several nodes, because process ids in a trace distinguish
    processes of one node only.

    `outcome`: of the run. `ended`: how its command ended; None if nothing ran. `problem`: why the profiler failed in a
    rank; None if it failed in none.
    """
    entry = PROFILERS[profiler]
    # The node of each file by name; None if the job ran on one node, or if the file is that of a rank.
    files: dict[str, int | None] = {}
    missing = None
    if entry.rank_file:
        files |= {entry.rank_file.format(rank=rank): None for rank in range(parameters.ranks)}
    if entry.node_file:
        names = node_files(entry.node_file, parameters.nodes)
        for node, name in enumerate(names):
            files[name] = node if len(names) > 1 else None
    if not files:
        missing = "no profiler was used"
    elif outcome != "completed":
        missing = f"the run ended as {outcome}"
    elif problem:
        missing = problem
    else:
        try:
            for name in files:
                entry.check(scratch / name)
        except TraceError as error:
            printed = entry.failure(text_of(target.parent / LOG))
            missing = "; ".join(filter(None, (str(error), printed and printable(printed, LONGEST_MESSAGE))))
            if ended and ended.lingered_s is not None:
                missing += f": it did not exit within {ended.lingered_s:g} s after the job, and was killed"
            # On several nodes, `exit_code` is srun's and not the profiler's.
            elif ended and ended.exit_code < 0 and entry.node_file is not None and parameters.nodes == 1:
                missing += f": it was killed by {signal.Signals(-ended.exit_code).name}"
    target.mkdir()
    if missing:
        files = {}
    for name in files:
        shutil.move(scratch / name, target / name)  # not `rename`: the scratch folder may be on another disk
        if entry.node_file:
            (target / name).chmod(0o600)  # the report may hold the environment of the job, with secrets
    kept = tuple(TraceFile.of(target / name, node) for name, node in files.items())
    Captured(profiler, missing, kept).write(target)
    return missing
