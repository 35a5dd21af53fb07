"""Problems that Nsight Systems recorded: its own diagnostics, and calls that failed."""

import re

from multicard.core.text import counted
from multicard.trace.model import Diagnostic
from multicard.trace.sqlite_file import SqliteFile

# `severity` in DIAGNOSTIC_EVENT is 1 for information, 2 for a warning and 3 for an error. Lower ones are not read.
WARNING = 2
# A longer diagnostic is cut to this many characters.
MOST_CHARACTERS = 200

# A diagnostic is about events that this project reads if it contains `_RELEVANT` and does not contain `_IRRELEVANT`.
# Others are about OpenGL, samples of the CPU, paths and more. It reports lost events if it contains `_LOSS`.
_RELEVANT = re.compile(r"CUDA|CUPTI|events? (?:were|was|have been) (?:lost|dropped)|buffer", re.IGNORECASE)
_IRRELEVANT = re.compile(r"OpenGL|cuDNN|cuBLAS|Unified Memory cannot be traced|NVTX", re.IGNORECASE)
_LOSS = re.compile(r"not all CUDA|lost|dropped|overflow|ran out of", re.IGNORECASE)

# cudaErrorNotReady. This is no failure: the query of a CUDA event returns it while work before the event is running.
NOT_READY = 600


def diagnostics(database: SqliteFile) -> tuple[Diagnostic, ...]:
    """Return the warnings and errors about CUDA events that the export holds, each once, in order of time.

    Return nothing if the export has no table of diagnostics.
    """
    columns = database.tables.get("DIAGNOSTIC_EVENT", set())
    if not {"severity", "text"} <= columns:
        return ()
    time = "MIN(timestamp)" if "timestamp" in columns else "NULL"
    rows = database.ask(
        "SELECT text FROM DIAGNOSTIC_EVENT WHERE severity >= ? AND text IS NOT NULL "
        f"GROUP BY text ORDER BY {time}, text",
        WARNING,
    )
    lines = [" ".join(str(text).split())[:MOST_CHARACTERS].rstrip(".") for (text,) in rows]
    return tuple(
        Diagnostic(line, means_loss=bool(_LOSS.search(line)))
        for line in lines
        if _RELEVANT.search(line) and not _IRRELEVANT.search(line)
    )


def failed_launches(database: SqliteFile) -> list[str]:
    """Return a line for each error code that launching calls returned, with the number of launches that returned it.

    A call of the runtime and the call of the driver inside it have the same correlation, so they count as one launch.
    The error of most launches comes first; of errors of equally many launches, the one with the lower code.
    """
    if not {"returnValue", "nameId", "correlationId"} <= database.tables.get("CUPTI_ACTIVITY_KIND_RUNTIME", set()):
        return []
    rows = database.ask(
        "SELECT r.returnValue, COUNT(DISTINCT COALESCE(r.correlationId, -r.rowid)) FROM CUPTI_ACTIVITY_KIND_RUNTIME r "
        "JOIN StringIds s ON s.id = r.nameId WHERE r.returnValue NOT IN (0, ?) AND s.value LIKE '%Launch%' "
        "GROUP BY r.returnValue ORDER BY 2 DESC, 1",
        NOT_READY,
    )
    return [f"{counted(count, 'launch')} failed (error {error})" for error, count in rows]
