"""No profiler: the job runs as it is."""

from multicard.profilers.interface import Profiler


class NoProfiler(Profiler):
    """Records nothing and leaves no trace."""

    name = "none"
    description = "no profiler, so no trace"


PROFILER = NoProfiler()
