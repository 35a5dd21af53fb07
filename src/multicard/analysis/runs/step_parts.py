"""The parts of a step, and the parts of a device's time: their names in texts and figures, and their columns."""

from enum import StrEnum

from multicard.trace import idle

# A step is "mostly" its largest part if the part has at least this share of its time.
MOSTLY = 0.5


class DevicePart(StrEnum):
    """A part of a device's time. Its value is the name in figures and tables. `device_time` computes the seconds.

    Every moment of a device's span is in exactly one part, so the parts add up to the span.
    """

    COMPUTE = "compute"
    COMPUTE_AND_COMMUNICATION = "compute and communication"
    # Communication while no kernel computes.
    COMMUNICATION = "exposed communication"
    # Copies, fills and migrations while no kernel computes or communicates.
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


# For each part that is idle time, the causes in the activity table `timeline` whose times it sums up.
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
    """A part of a run's step. Its value is the name in texts and figures.

    The parts are in the order of the columns of measures.csv. docs/measuring.md explains them in "Parts of a step". A
    run has either `COMPUTE` or `COMPUTE_OR_COMMUNICATION`.
    """

    COMPUTE = "compute"
    # Used for several devices without a trace, because phases do not separate communication from computing.
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


# The parts of a step that a trace shows. Each is the sum of the listed parts of the devices' time.
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

# The parts in which a device computes, or may compute.
COMPUTING = (StepPart.COMPUTE, StepPart.COMPUTE_OR_COMMUNICATION)
