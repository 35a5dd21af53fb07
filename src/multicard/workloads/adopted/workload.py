"""The workload `adopted`: runs that `multicard analyze --as-runs` makes from traces."""

from collections.abc import Mapping
from typing import Any, ClassVar

from multicard.core.values import Row
from multicard.experiment.machine import Machine
from multicard.experiment.workload import Inputs, Method, Unit, Workload, batch_and_own
from multicard.workloads.adopted.parameters import AdoptedParameters


class Adopted(Workload):
    """Runs that are known only from traces."""

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
        """Return that no trace was adopted for the run: those with traces are in an archive, others cannot be made."""
        return "no trace of it was adopted"

    def baseline_words(self, method: str) -> str:
        """Return "1 GPU", without the program: only runs of the same program are compared."""
        return "1 GPU"

    def learning(self, values: Mapping[str, Any]) -> Row:
        """Return the measured batch size and all of the program's own parameters, since any may affect learning."""
        return batch_and_own(self, values)

    def job(self, values: Mapping[str, Any]) -> str:
        """Return the name of the program: runs of the same program do the same job."""
        return str(values["program"])


WORKLOAD = Adopted()
