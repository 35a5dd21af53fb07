"""The program `llm`: tuning of language models by one of several libraries."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from multicard.core.job_file import JobPaths
from multicard.core.values import Row
from multicard.programs.datasets import Text
from multicard.programs.llm.estimate import resources, sample_count
from multicard.programs.llm.libraries import LIBRARIES
from multicard.programs.llm.measures import LLM_MEASURES
from multicard.programs.llm.parameters import LlmParameters
from multicard.programs.llm.techniques import TECHNIQUES
from multicard.programs.machine import Machine
from multicard.programs.models import Model
from multicard.programs.options import options_of
from multicard.programs.program import (
    BATCH,
    Checks,
    Comparison,
    Input,
    InputRecords,
    Inputs,
    Program,
    RankCommand,
    Unit,
)
from multicard.programs.provenance import ModelProvenance, TextProvenance, files_of_record, read_provenance
from multicard.runs.record import DataRecord, ModelRecord


def _command(p: LlmParameters, paths: JobPaths) -> RankCommand:
    """Return the command of a rank: `programs.llm.train`, with the parameters as its options."""
    folders = {"data": paths.data, "model-folder": paths.model, "scratch": paths.scratch}
    options = [f"--{name}={folder}" for name, folder in folders.items() if folder is not None]
    words = ["-m", "multicard.programs.llm.train", *options_of(p), *options]
    return RankCommand(words, python=LIBRARIES[p.library].python())


def _config_error(p: LlmParameters, inputs: Inputs) -> str | None:
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
            f"sequence_length: {p.sequence_length} is more than the {model.shape.max_sequence} of the model {p.model}"
        )
    return technique.config_error(p, model and model.shape) or LIBRARIES[p.library].config_error(p)


def _unsupported_reason(p: LlmParameters, machine: Machine, inputs: Inputs) -> str | None:
    """Return why a run cannot run on `machine`; None if it can.

    The library may not have the technique, the machine may lack the library, another package or the weights, or the
    library may not support the devices.
    """
    model = inputs.get("model")
    library = LIBRARIES[p.library]
    if p.technique not in library.techniques:
        able = " or ".join(name for name, other in LIBRARIES.items() if p.technique in other.techniques)
        return f"the technique {p.technique} needs library: {able}"
    refused = library.missing(machine) or library.unsupported_reason(p, machine, model and model.shape)
    if refused or model is None:
        return refused
    return model.missing_files() if machine.weights_needed else None


def _data_error(p: LlmParameters, samples: int) -> str | None:
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


def _prepare_texts(name: str, definition: Any, folder: Path, resources: Path) -> None:
    """Prepare a set of texts."""
    from multicard.programs.llm.prepare_texts import prepare_texts

    prepare_texts(name, definition, folder, resources)


def _prepare_model(name: str, definition: Any, folder: Path, resources: Path) -> None:
    """Prepare a model."""
    # Imported here because planning needs no torch.
    from multicard.programs.llm.prepare_model import prepare_model

    prepare_model(name, definition, folder, resources)


def _data_record(folder: Path) -> InputRecords:
    """Return the record of a prepared set of texts."""
    texts = read_provenance(folder, TextProvenance)
    record = DataRecord(
        dataset=texts.dataset,
        source=texts.source,
        kind=texts.kind,
        train_samples=texts.train_samples,
        files=files_of_record(texts),
    )
    return {"data": record}


def _model_record(folder: Path) -> InputRecords:
    """Return the record of a prepared model."""
    weights = read_provenance(folder, ModelProvenance)
    record = ModelRecord(
        model=weights.model,
        architecture=weights.architecture,
        parameters=weights.parameters,
        files=files_of_record(weights),
    )
    return {"model": record}


def _job(values: Mapping[str, Any]) -> str:
    """Return model, texts and longest sequence, and the kind of samples if the technique needs a certain kind."""
    text_kind = TECHNIQUES[values["technique"]].text_kind
    learned = f", by {text_kind}s" if text_kind else ""
    return f"{values['model']} on {values['dataset']}, up to {values['sequence_length']} tokens{learned}"


def _learning(values: Mapping[str, Any]) -> Row:
    """Return global batch size, precision, learning rate, technique with its parameters, and packing.

    Packing belongs to these because a packed sample has several samples, which makes batches larger.
    """
    p = LLM.parameters_in(values)
    names = ("technique", "packed", "lora_rank", "lora_alpha", *TECHNIQUES[p.technique].own_parameters)
    batch = p.batch_size * p.gradient_accumulation_steps * p.devices
    common = {BATCH: batch, "precision": p.precision, "learning_rate": p.peak_learning_rate}
    return common | {name: values.get(name) for name in names}


def _tuning_applies(changes: Mapping[str, Any], values: Mapping[str, Any]) -> bool:
    """Return whether a change of the technique may be an improvement; other changes always may."""
    if "technique" not in changes:
        return True
    return TECHNIQUES[changes["technique"]].improves(values["technique"])


LLM = Program(
    name="llm",
    parameters=LlmParameters,
    command=_command,
    unit=Unit("token", "tokens", "tokens_per_s", "energy_per_token_j"),
    method="technique",
    methods=TECHNIQUES,
    own_parameters={name: technique.own_parameters for name, technique in TECHNIQUES.items()},
    inputs={
        "dataset": Input(Text, _prepare_texts, _data_record, sample_count),
        "model": Input(Model, _prepare_model, _model_record),
    },
    checks=Checks(_config_error, _unsupported_reason, _data_error),
    resources=resources,
    measures=LLM_MEASURES,
    comparison=Comparison(
        job=_job,
        learning=_learning,
        default_label="technique",
        scaling=lambda values: "weak",
        loss_depends_on=("technique", "dataset"),
        tuning_applies=_tuning_applies,
    ),
    paper="B",
)
