"""The workload `llm`: tuning of language models."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

from multicard.core.job_file import ObservedJob
from multicard.core.pipeline import pipeline_folder
from multicard.core.values import Row
from multicard.experiment.datasets import ShippedText, Text
from multicard.experiment.machine import Machine
from multicard.experiment.models import Architecture, Model
from multicard.experiment.workload import BATCH, InputRecords, Inputs, Resources, Unit, Workload
from multicard.record.profiled_window import LEAST_SETTLING
from multicard.runs.record import DataRecord, ModelRecord
from multicard.workloads.llm.memory_estimate import BYTES, estimate_memory
from multicard.workloads.llm.parameters import LlmParameters
from multicard.workloads.llm.techniques import TECHNIQUES
from multicard.workloads.provenance import ModelProvenance, TextProvenance, files_of_record, read_provenance

# Floating-point operations per second of a GPU that tunes a language model. They are assumed, not measured: for bf16
# about a third of what the data sheet of a current data-centre GPU gives for dense matrices.
FLOP_PER_S = {"bf16": 3e14, "fp32": 3e13}

# Assumed, too: the bytes per second of the storage from which all ranks of a node read the weights at the same time;
# and the seconds to import torchtune and to tokenize the first samples.
STORAGE_BYTES_PER_S = 1e9
LIBRARIES_S = 30.0


class Llm(Workload):
    """Tuning of Llama-3 models by torchtune."""

    name = "llm"
    parameters = LlmParameters
    program = "multicard.workloads.llm.train"
    inputs: ClassVar[Mapping[str, type]] = {"dataset": Text, "model": Model}
    method, methods = "technique", TECHNIQUES
    unit = Unit("token", "tokens", "tokens_per_s", "energy_per_token_j")
    step_columns = ("tokens", "padded_tokens", "loss")

    def observed(self, p: LlmParameters) -> ObservedJob:
        """Return the entries of every workload, and the number of measured steps, which the parameters state."""
        return replace(super().observed(p), measured_steps=p.steps)

    def input_facts(self, data: Path, model: Path | None) -> InputRecords:
        """Return the records of the texts and of the model."""
        if model is None:
            raise ValueError("a tuning job has a model, found none")
        texts = read_provenance(data, TextProvenance)
        weights = read_provenance(model, ModelProvenance)
        data_record = DataRecord(
            dataset=texts.dataset,
            source=texts.source,
            kind=texts.kind,
            train_samples=texts.train_samples,
            files=files_of_record(texts),
        )
        model_record = ModelRecord(
            model=weights.model,
            architecture=weights.architecture,
            parameters=weights.parameters,
            files=files_of_record(weights),
        )
        return {"data": data_record, "model": model_record}

    def config_error(self, p: LlmParameters, inputs: Inputs) -> str | None:
        """Return why the parameters do not fit the technique, the samples or the model; None if they fit."""
        technique = TECHNIQUES[p.technique]
        dataset = inputs.get("dataset")
        model = inputs.get("model")
        if dataset and technique.text_kind not in (None, dataset.kind):
            return (
                f"the technique {p.technique} needs a data set of kind {technique.text_kind}, "
                f"{p.dataset} is one of kind {dataset.kind}"
            )
        if model and p.sequence_length > model.shape.max_sequence:
            return (
                f"sequence_length: {p.sequence_length} is more than the {model.shape.max_sequence} of the model "
                f"{p.model}"
            )
        return technique.config_error(p, model and model.shape)

    def sample_count(self, definition: Any) -> int | None:
        """Return the number of samples of a shipped set, the lines of its file up to its limit; None for other sets."""
        if not isinstance(definition, ShippedText):
            return None
        lines = _shipped_lines(definition.file)
        return min(lines, definition.limit or lines)

    def data_error(self, p: LlmParameters, samples: int) -> str | None:
        """Return that a step needs more than `samples` samples; None if it does not.

        None also if samples are packed, because only packing shows how many packs they make.
        """
        batches_of_step = p.gradient_accumulation_steps * p.devices
        needed = p.batch_size * batches_of_step
        if p.packed or samples >= needed:
            return None
        largest = samples // batches_of_step
        remedy = f"; set batch_size: {largest} or less" if largest else ""
        return f"batch_size: a step of all devices needs {needed} samples, found {samples}{remedy}"

    def applies(self, parameter: str, values: Mapping[str, Any]) -> bool:
        """Return whether a parameter has an effect. A technique's own parameter has one only with that technique."""
        technique = values.get("technique", LlmParameters.model_fields["technique"].default)
        owners = [name for name, owner in TECHNIQUES.items() if parameter in owner.own_parameters]
        return super().applies(parameter, values) and (not owners or technique in owners)

    def unsupported_reason(self, p: LlmParameters, machine: Machine, inputs: Inputs) -> str | None:
        """Return why a run cannot run on `machine`; None if it can.

        The machine may lack torchtune, Triton or the weights, or the technique may not support the devices.
        """
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
        """Estimate durations as if all sequences were full, and the memory of the host and of a device."""
        technique = TECHNIQUES[p.technique]
        shape: Architecture = inputs["model"].shape
        weights_bytes = BYTES[p.precision] * shape.parameters
        device_bytes = estimate_memory(p, shape).total
        # The host holds all weights twice while the files that were read are joined.
        host_bytes = 2 * weights_bytes + (device_bytes if p.device == "cpu" else 0)

        sequences = p.gradient_accumulation_steps * p.batch_size * technique.sequences_per_sample
        # Activation checkpointing computes the forward pass again: 2 operations per weight and token.
        flop_per_weight = technique.flop_per_weight(p) + (2 if p.activation_checkpointing else 0)
        step_s = sequences * p.sequence_length * flop_per_weight * shape.parameters / FLOP_PER_S[p.precision]
        durations_s = {
            "loading weights": LIBRARIES_S + weights_bytes / STORAGE_BYTES_PER_S,
            "training": (p.warmup_steps + p.steps) * step_s,
            "profiled window": (LEAST_SETTLING + p.profiled_steps) * step_s,
        }
        return Resources(host_bytes / 1e6, device_bytes, durations_s)

    def loads_in_step(self, p: LlmParameters) -> bool:
        """Return True: the recipes load in the process that trains."""
        return True

    def job(self, values: Mapping[str, Any]) -> str:
        """Return model, texts and sequence length, and the kind of samples if the technique needs a certain kind."""
        text_kind = TECHNIQUES[values["technique"]].text_kind
        learned = f", by {text_kind}s" if text_kind else ""
        return f"{values['model']} on {values['dataset']}, {values['sequence_length']} tokens{learned}"

    def learning(self, values: Mapping[str, Any]) -> Row:
        """Return global batch size, precision, learning rate, technique with its parameters, and packing.

        Packing belongs to these because a packed sample has several samples, which makes batches larger.
        """
        p = self.stated_in(values)
        names = ("technique", "packed", "lora_rank", "lora_alpha", *TECHNIQUES[p.technique].own_parameters)
        batch = p.batch_size * p.gradient_accumulation_steps * p.devices
        common = {BATCH: batch, "precision": p.precision, "learning_rate": p.peak_learning_rate}
        return common | {name: values.get(name) for name in names}

    def tuning_applies(self, changes: Mapping[str, Any], values: Mapping[str, Any]) -> bool:
        """Return whether a change of the technique may be an improvement; other changes always may."""
        if "technique" not in changes:
            return True
        return TECHNIQUES[changes["technique"]].improves(values["technique"])


# Cached because the runs of an experiment share a few files.
@cache
def _shipped_lines(file: Path) -> int:
    """Return the number of lines of a shipped file."""
    return (pipeline_folder() / "resources" / file).read_bytes().count(b"\n")


WORKLOAD = Llm()
