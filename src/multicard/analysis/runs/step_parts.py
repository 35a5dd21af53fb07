"""The parts of a step and of a device's time: their names in texts and figures, and their columns in tables."""

from enum import StrEnum

from multicard.trace import idle

# Share of the time from which on a part is most of it.
MOSTLY = 0.5


class DevicePart(StrEnum):
    """A part of a device's time, named as figures and tables show it. `device_time` computes the seconds of each.

    Every moment of the device is in one part, so that the parts add up to the span.
    """

    COMPUTE = "compute"
    COMPUTE_AND_COMMUNICATION = "compute and communication"
    # Nothing computes meanwhile.
    COMMUNICATION = "exposed communication"
    # Nothing computes or communicates meanwhile.
    MEMORY_OPERATIONS = "exposed memory operations"
    GRAPHS = "CUDA graphs"
    IDLE_LAUNCHING = "idle (launching)"
    IDLE_ALLOCATING = "idle (allocating)"
    IDLE_LOADING_CODE = "idle (loading code)"
    IDLE_SYNCHRONIZING = "idle (synchronizing)"
    IDLE_DATA_LOADING = "idle (data loading)"
    IDLE_HOST_ELSEWHERE = "idle (host in no call)"
    IDLE_IN_GRAPH = "idle (within a graph)"
    IDLE_QUEUED = "idle (queued)"
    IDLE_UNKNOWN = "idle (unknown)"


# Causes of idle time in the activity table `timeline`, by the part that is the sum of their times.
IDLE_CAUSES: dict[DevicePart, tuple[str, ...]] = {
    DevicePart.IDLE_LAUNCHING: (idle.LAUNCHING, idle.BETWEEN_CALLS, idle.OTHER_CALLS),
    DevicePart.IDLE_ALLOCATING: (idle.ALLOCATING,),
    DevicePart.IDLE_LOADING_CODE: (idle.LOADING_CODE,),
    DevicePart.IDLE_SYNCHRONIZING: (idle.WAITING,),
    DevicePart.IDLE_DATA_LOADING: (idle.DATA_LOADING,),
    DevicePart.IDLE_HOST_ELSEWHERE: (idle.ELSEWHERE,),
    DevicePart.IDLE_IN_GRAPH: (idle.IN_GRAPH,),
    DevicePart.IDLE_QUEUED: (idle.QUEUED,),
    DevicePart.IDLE_UNKNOWN: (idle.UNKNOWN_CAUSE,),
}


class StepPart(StrEnum):
    """A part of a run's step, named as texts and figures show it, in the order of the columns of measures.csv.

    docs/measuring.md, "Parts of a step", explains them. Of `COMPUTE` and `COMPUTE_OR_COMMUNICATION` a run has one.
    """

    COMPUTE = "compute"
    # Phases alone cannot tell communication from computing where there are several devices.
    COMPUTE_OR_COMMUNICATION = "compute or communication"
    GRAPHS = "CUDA graphs"
    COMMUNICATION = "exposed communication"
    RANKS = "waiting for other ranks"
    MEMORY_OPERATIONS = "memory operations"
    LAUNCHES = "launch overhead"
    ALLOCATING = "memory allocation"
    LOADING_CODE = "loading code"
    SYNCHRONIZING = "synchronization"
    HOST_ELSEWHERE = "host without GPU calls"
    DATA = "data loading"
    WITHIN_GRAPHS = "idle within graphs"
    QUEUED = "queued on the GPU"
    EVALUATION = "evaluation"
    STALLS = "stalls"
    OTHER = "other"

    @property
    def column(self) -> str:
        """The column of measures.csv with the share of the step that this part takes, from 0 to 1.

        >>> StepPart.GRAPHS.column
        'cuda_graphs_share'
        """
        return f"{self.value.lower().replace(' ', '_')}_share"


# The parts of a step that a trace shows, each with the parts of the devices' time that it sums up.
TRACED_PARTS: dict[StepPart, tuple[DevicePart, ...]] = {
    StepPart.COMPUTE: (DevicePart.COMPUTE, DevicePart.COMPUTE_AND_COMMUNICATION),
    StepPart.GRAPHS: (DevicePart.GRAPHS,),
    StepPart.COMMUNICATION: (DevicePart.COMMUNICATION,),
    StepPart.MEMORY_OPERATIONS: (DevicePart.MEMORY_OPERATIONS,),
    StepPart.LAUNCHES: (DevicePart.IDLE_LAUNCHING,),
    StepPart.ALLOCATING: (DevicePart.IDLE_ALLOCATING,),
    StepPart.LOADING_CODE: (DevicePart.IDLE_LOADING_CODE,),
    StepPart.SYNCHRONIZING: (DevicePart.IDLE_SYNCHRONIZING,),
    StepPart.DATA: (DevicePart.IDLE_DATA_LOADING,),
    StepPart.HOST_ELSEWHERE: (DevicePart.IDLE_HOST_ELSEWHERE,),
    StepPart.WITHIN_GRAPHS: (DevicePart.IDLE_IN_GRAPH,),
    StepPart.QUEUED: (DevicePart.IDLE_QUEUED,),
    StepPart.OTHER: (DevicePart.IDLE_UNKNOWN,),
}

# The parts in which a device computes, for all that is known.
COMPUTING = (StepPart.COMPUTE, StepPart.COMPUTE_OR_COMMUNICATION)
