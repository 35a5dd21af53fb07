"""The trace of a job in its run directory, or the reason why there is none."""

import shutil
import signal
from pathlib import Path

from multicard.core.errors import TraceError
from multicard.core.files import described, write_json
from multicard.core.layout import CAPTURED, LOG, node_files
from multicard.core.reasons import LONGEST_MESSAGE
from multicard.core.text import printable
from multicard.launch.judge import text_of
from multicard.launch.supervise import Ended
from multicard.launch.watch import FINISH_LIMIT_S
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
    """Move the trace into the run directory; its manifest lists the files, or says why there are none, which is given.

    Process ids have a meaning on one node only, so the manifest names the node of a report where there are several.

    `problem`: why the profiler failed in a rank, if it did: then there is no trace of any.
    """
    entry = PROFILERS[profiler]
    # What the manifest says of each file beside its description.
    files: dict[str, dict[str, int]] = {}
    missing = None
    if entry.rank_file:
        files |= {entry.rank_file.format(rank=rank): {} for rank in range(parameters.ranks)}
    if entry.node_file:
        names = node_files(entry.node_file, parameters.nodes)
        for node, name in enumerate(names):
            files[name] = {"node": node} if len(names) > 1 else {}
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
            # On several nodes srun is the process that ended, not the profiler.
            printed = entry.failure(text_of(target.parent / LOG))
            missing = "; ".join(filter(None, (str(error), printed and printable(printed, LONGEST_MESSAGE))))
            if ended and ended.lingered:
                missing += f": it did not exit within {FINISH_LIMIT_S:g} s after the job, and was killed"
            elif ended and ended.exit_code < 0 and entry.node_file is not None and parameters.nodes == 1:
                missing += f": it was killed by {signal.Signals(-ended.exit_code).name}"
    target.mkdir()
    if missing:
        files = {}
    for name in files:
        shutil.move(scratch / name, target / name)  # the scratch folder may be on another disk
        if entry.node_file:
            (target / name).chmod(0o600)  # it may hold the environment of the job
    captured = {
        "profiler": profiler,
        "missing": missing,
        "files": [described(target / name) | node for name, node in files.items()],
    }
    write_json(target / CAPTURED, captured)
    return missing
