"""What of a job's trace is kept in its run directory, and why nothing is where nothing is."""

import shutil
import signal
from pathlib import Path
from typing import Any

from multicard.core.errors import TraceError
from multicard.core.files import described, write_json
from multicard.core.layout import CAPTURED, REPORT, node_file
from multicard.experiment.parameters import JobParameters
from multicard.launch.process import FINISH_LIMIT_S, Ended
from multicard.profilers import nsys


def keep_trace(
    scratch: Path, target: Path, profiler: str, outcome: str, parameters: JobParameters, ended: Ended | None = None
) -> dict[str, Any]:
    """Move the trace into the run directory; its manifest says what is there, or why nothing is.

    Process ids have a meaning on one node only, so the manifest names the node of a report where there are several.
    """
    missing, files, nodes = None, [], {}
    if profiler == "none":
        missing = "no profiler was used"
    elif outcome != "completed":
        missing = f"the run ended as {outcome}"
    elif profiler == "nsys":
        files = [scratch / REPORT]
        if parameters.nodes > 1:
            nodes = {node_file(REPORT, node): {"node": node} for node in range(parameters.nodes)}
            files = [scratch / name for name in nodes]
        try:
            for file in files:
                nsys.check_report(file)
        except TraceError as error:
            # Of several nodes it is srun that ended, not nsys.
            missing, files = f"{error}{_how_nsys_ended(ended) if parameters.nodes == 1 else ''}", []
    else:
        files = [scratch / f"rank{rank}.json.gz" for rank in range(parameters.ranks)]
        absent = [file.name for file in files if not file.exists()]
        if absent:
            missing, files = f"the profiler left no {', '.join(absent)}", []
    target.mkdir()
    for file in files:
        shutil.move(file, target / file.name)  # it may come from another disk
    captured = {
        "profiler": profiler,
        "missing": missing,
        "files": [described(target / file.name) | nodes.get(file.name, {}) for file in files],
    }
    write_json(target / CAPTURED, captured)
    return captured


def _how_nsys_ended(ended: Ended | None) -> str:
    if ended is None:
        return ""
    if ended.lingered:
        return f": it did not end within {FINISH_LIMIT_S:g} s after the job, and was ended"
    if ended.exit_code < 0:
        return f": {signal.Signals(-ended.exit_code).name} ended it"
    if ended.orphaned:
        return ": it ended before the job did"
    return ""
