"""The entry of runs that `multicard analyze --as-runs` makes of traces."""

from collections.abc import Mapping
from typing import Any, ClassVar

from multicard.experiment.machine import Machine
from multicard.experiment.workload import Inputs, Method, Unit, Workload, batch_and_own
from multicard.workloads.adopted.parameters import AdoptedParameters


class Adopted(Workload):
    """A run of which there are traces, and nothing else."""

    name = "adopted"
    parameters = AdoptedParameters
    inputs: ClassVar[Mapping[str, type]] = {}
    method = "program"
    methods: ClassVar[Mapping[str, Method]] = {}
    unit = Unit("sample", "samples", "throughput_samples_per_s", "energy_per_sample_j")
    launches = False
    is_user_program = True
    data_wait_unknown = "traces do not tell it"
    states_samples_by = "the column samples_per_step of the table of traces"

    def unsupported_reason(self, p: AdoptedParameters, machine: Machine, inputs: Inputs) -> str:
        """Nothing can be launched: what has a trace is in an archive."""
        return "no trace of it was adopted"

    def baseline_words(self, method: str) -> str:
        """One GPU."""
        return "1 GPU"

    def learning(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Any parameter of its own may matter."""
        return batch_and_own(self, values)

    def job(self, values: Mapping[str, Any]) -> str:
        """Same program."""
        return str(values["program"])


WORKLOAD = Adopted()
