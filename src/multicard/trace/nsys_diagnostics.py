"""Problems that Nsight Systems recorded: its own diagnostics, and calls that failed."""

import re

from multicard.core.text import counted
from multicard.trace.model import Diagnostic
from multicard.trace.sqlite_file import SqliteFile

# `severity` in DIAGNOSTIC_EVENT: 1 information, 2 warning, 3 error.
WARNING = 2
MOST_CHARACTERS = 200

# Diagnostics about events that this project reads. Others are about OpenGL, samples of the CPU, paths and more.
_RELEVANT = re.compile(r"CUDA|CUPTI|events? (?:were|was|have been) (?:lost|dropped)|buffer", re.IGNORECASE)
_IRRELEVANT = re.compile(r"OpenGL|cuDNN|cuBLAS|Unified Memory cannot be traced|NVTX", re.IGNORECASE)
_LOSS = re.compile(r"not all CUDA|lost|dropped|overflow|ran out of", re.IGNORECASE)

# cudaErrorNotReady, which a query of a running event returns: no failure.
NOT_READY = 600


def diagnostics(database: SqliteFile) -> tuple[Diagnostic, ...]:
    """Return the warnings and errors about CUDA events that the export holds, each once."""
    if not {"severity", "text"} <= database.tables.get("DIAGNOSTIC_EVENT", set()):
        return ()
    rows = database.ask(
        "SELECT text FROM DIAGNOSTIC_EVENT WHERE severity >= ? AND text IS NOT NULL GROUP BY text ORDER BY MIN(rowid)",
        WARNING,
    )
    lines = [" ".join(str(text).split())[:MOST_CHARACTERS].rstrip(".") for (text,) in rows]
    return tuple(
        Diagnostic(line, means_loss=bool(_LOSS.search(line)))
        for line in lines
        if _RELEVANT.search(line) and not _IRRELEVANT.search(line)
    )


def failed_launches(database: SqliteFile) -> list[str]:
    """Return a line for each error that launching calls returned, with the number of launches that failed with it.

    A call of the runtime and the call of the driver inside it are one launch, with one correlation.
    """
    if not {"returnValue", "nameId", "correlationId"} <= database.tables.get("CUPTI_ACTIVITY_KIND_RUNTIME", set()):
        return []
    rows = database.ask(
        "SELECT r.returnValue, COUNT(DISTINCT COALESCE(r.correlationId, -r.rowid)) FROM CUPTI_ACTIVITY_KIND_RUNTIME r "
        "JOIN StringIds s ON s.id = r.nameId WHERE r.returnValue NOT IN (0, ?) AND s.value LIKE '%Launch%' "
        "GROUP BY r.returnValue ORDER BY 2 DESC",
        NOT_READY,
    )
    return [f"{counted(count, 'launch')} failed (error {error})" for error, count in rows]
