"""The entry of language models' tuning."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

from multicard.core.pipeline import pipeline_folder
from multicard.core.prepared import read_prepared
from multicard.experiment.datasets import ShippedText, Text
from multicard.experiment.machine import Machine
from multicard.experiment.models import Model
from multicard.experiment.workload import BATCH, Inputs, Resources, Unit, Workload
from multicard.record.profiled_window import LEAST_SETTLING
from multicard.workloads.llm.memory_estimate import BYTES, estimate_memory
from multicard.workloads.llm.parameters import LlmParameters
from multicard.workloads.llm.techniques import TECHNIQUES

# Assumed, not measured: of the arithmetic of a language model, about a third of what the data sheet of a current
# data-centre GPU gives for dense bf16.
FLOPS = {"bf16": 3e14, "fp32": 3e13}

# Assumed too: of the storage that weights are on, which all ranks of a node read at once; and what importing torchtune
# and tokenizing the first samples takes.
STORAGE_BYTES_PER_S = 1e9
LIBRARIES_S = 30.0


class Llm(Workload):
    """Tuning of Llama-3 models by torchtune."""

    name = "llm"
    parameters = LlmParameters
    program = "multicard.workloads.llm.train"
    inputs: ClassVar[Inputs] = {"dataset": Text, "model": Model}
    method, methods = "technique", TECHNIQUES
    unit = Unit("token", "tokens", "tokens_per_s", "energy_per_token_j")
    step_columns = ("tokens", "padded_tokens", "loss")

    def observed(self, p: LlmParameters) -> dict[str, Any]:
        """The measured steps are stated."""
        return super().observed(p) | {"measured_steps": p.steps}

    def input_facts(self, data: Path, model: Path | None) -> dict[str, Any]:
        """Of the texts and the model."""
        texts, weights = read_prepared(data, "set of texts"), read_prepared(model, "model")
        of_data = ("dataset", "source", "kind", "train_samples", "files")
        of_model = ("model", "architecture", "parameters", "files")
        return {
            "data": {name: texts[name] for name in of_data},
            "model": {name: weights[name] for name in of_model},
        }

    def config_error(self, p: LlmParameters, inputs: Inputs) -> str | None:
        """Compare the parameters with the technique, the samples and the model."""
        technique, dataset, model = TECHNIQUES[p.technique], inputs.get("dataset"), inputs.get("model")
        if dataset and technique.kind not in (None, dataset.kind):
            return (
                f"the technique {p.technique} needs a data set of kind {technique.kind}, {p.dataset} is one of kind "
                f"{dataset.kind}"
            )
        if model and p.sequence_length > model.shape.max_sequence:
            return (
                f"sequence_length: {p.sequence_length} is more than the {model.shape.max_sequence} of the model "
                f"{p.model}"
            )
        return technique.config_error(p, model and model.shape)

    def sample_count(self, definition: Any) -> int | None:
        """Return the number of samples of a shipped set, which has a line for each."""
        if not isinstance(definition, ShippedText):
            return None
        lines = _shipped_lines(definition.file)
        return min(lines, definition.limit or lines)

    def data_error(self, p: LlmParameters, samples: int) -> str | None:
        """Return that a step needs more samples than there are; how many packs they make is not known before."""
        of_batch = p.gradient_accumulation_steps * p.devices
        needed = p.batch_size * of_batch
        if p.packed or samples >= needed:
            return None
        found = f"batch_size: a step of all devices needs {needed} samples, found {samples}"
        return found + (f"; set batch_size: {samples // of_batch} or less" if samples >= of_batch else "")

    def applies(self, parameter: str, values: Mapping[str, Any]) -> bool:
        """Ask the techniques."""
        technique = values.get("technique", LlmParameters.model_fields["technique"].default)
        owners = [name for name, entry in TECHNIQUES.items() if parameter in entry.own_parameters]
        return super().applies(parameter, values) and (not owners or technique in owners)

    def unsupported_reason(self, p: LlmParameters, machine: Machine, inputs: Inputs) -> str | None:
        """Ask for torchtune and what it compiles with, then the technique, then for the weights."""
        model = inputs.get("model")
        if machine.torchtune:
            return machine.torchtune
        if p.packed and p.device == "cuda" and machine.triton:
            # torchtune compiles the attention of packed sequences on GPUs, whatever `compile` says.
            return f"packed: true on GPUs has its attention compiled, which needs {machine.triton}; or packed: false"
        if model is None:
            return None
        refused = TECHNIQUES[p.technique].unsupported_reason(p, model.shape)
        return refused or (model.missing_files() if machine.weights_needed else None)

    def prepare(self, name: str, definition: Any, folder: Path, resources: Path) -> None:
        """Prepare a model or a set of texts."""
        if isinstance(definition, Model):
            from multicard.workloads.llm.prepare_model import prepare_model

            prepare_model(name, definition, folder, resources)
        else:
            from multicard.workloads.llm.prepare_texts import prepare_texts

            prepare_texts(name, definition, folder, resources)

    def resources(self, p: LlmParameters, inputs: Inputs) -> Resources:
        """Steps as if sequences were full; on the host all weights twice, since pieces that are read are joined."""
        technique, shape = TECHNIQUES[p.technique], inputs["model"].shape
        on_device, weights = estimate_memory(p, shape).total, BYTES[p.precision] * shape.parameters
        sequences = p.gradient_accumulation_steps * p.batch_size * technique.sequences_per_sample
        # What is not kept of the forward pass is computed again: 2 operations per weight and token.
        operations = technique.flop_per_weight(p) + (2 if p.activation_checkpointing else 0)
        step = sequences * p.sequence_length * operations * shape.parameters / FLOPS[p.precision]
        durations = {
            "loading weights": LIBRARIES_S + weights / STORAGE_BYTES_PER_S,
            "training": (p.warmup_steps + p.steps) * step,
            "profiled window": (LEAST_SETTLING + p.profiled_steps) * step,
        }
        return Resources((2 * weights + (on_device if p.device == "cpu" else 0)) / 1e6, on_device, durations)

    def loads_in_step(self, p: LlmParameters) -> bool:
        """The recipes load in the process that trains."""
        return True

    def job(self, values: Mapping[str, Any]) -> str:
        """Same model, texts and length; preferences teach something else than answers do."""
        kind = TECHNIQUES[values["technique"]].kind
        learned = f", by {kind}s" if kind else ""
        return f"{values['model']} on {values['dataset']}, {values['sequence_length']} tokens{learned}"

    def learning(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Packed samples make larger batches."""
        p = self.stated_in(values)
        names = ("technique", "packed", "lora_rank", "lora_alpha", *TECHNIQUES[p.technique].own_parameters)
        own = {name: values.get(name) for name in names}
        batch = p.batch_size * p.gradient_accumulation_steps * p.devices
        return {BATCH: batch, "precision": p.precision, "learning_rate": p.peak_learning_rate} | own

    def tuning_applies(self, changes: Mapping[str, Any], values: Mapping[str, Any]) -> bool:
        """Ask the techniques."""
        return "technique" not in changes or TECHNIQUES[changes["technique"]].improves(values["technique"])


@cache  # it is asked for each run of an experiment
def _shipped_lines(file: Path) -> int:
    return (pipeline_folder() / "resources" / file).read_bytes().count(b"\n")


WORKLOAD = Llm()
