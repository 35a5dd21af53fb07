"""Prepare a language model: `tiny` is created, a user's folder is checked and never changed."""

from pathlib import Path
from typing import Any

from multicard.core.errors import UserError
from multicard.core.files import described, read_object, write_json
from multicard.core.prepared import PROVENANCE, read_prepared, refuse_changed
from multicard.experiment.models import Architecture, Model
from multicard.workloads.llm.tiny import CONFIG, SPECIAL_TOKENS_FILE, WEIGHTS, make_tiny

SHARDS = f"model-{5 * '[0-9]'}-of-{5 * '[0-9]'}.safetensors"
# Hugging Face's repositories of Llama 3 hold the tokenizer that torchtune reads in the second place.
TOKENIZERS = ("tokenizer.model", "original/tokenizer.model")


def prepare_model(name: str, model: Model, folder: Path, resources: Path) -> None:
    """Prepare one model; provenance.json comes last in `folder` and records where the weights are and what they are.

    The keys of provenance.json: `model` (its name), `architecture`, `folder` (of the weights), `tokenizer`,
    `special_tokens` (a file; null for those of Llama 3), `checkpoint_files` (names in order), `parameters` (their
    number), `files` (names from the folder, sizes, and checksums where the files are ours).

    Raises
    ------
    UserError
        If the user's folder is not a checkpoint of the architecture with a tokenizer.
    """
    if wrong := model.config_error():
        raise UserError(f"models.{name}.{wrong}")
    if missing := model.missing_files():
        raise UserError(f"models.{name}: {missing}; fetch the model by: {model.download_command}")
    # An earlier one must not stand for what is not prepared yet.
    (folder / PROVENANCE).unlink(missing_ok=True)
    if model.architecture == "tiny":
        place = folder.absolute()
        made = make_tiny(place, model.shape, resources / "tiny")
        facts = check_folder(place, model.shape, "")
        facts |= {"special_tokens": str(place / SPECIAL_TOKENS_FILE), "files": [described(file) for file in made]}
    else:
        place = Path(model.folder).absolute()
        facts = check_folder(place, model.shape, model.download_command)
    write_json(folder / PROVENANCE, {"model": name, "architecture": model.architecture, "folder": str(place), **facts})


def check_folder(folder: Path, shape: Architecture, download: str) -> dict[str, Any]:
    """Check that a folder has weights, a tokenizer, and a config.json of this shape; give its facts.

    `download` is the command that fetches what is missing. What weights and tokenizer hold is found by torchtune.

    Raises
    ------
    UserError
        In one line, at the first error.
    """
    ends = {file.name.partition("-of-")[2] for file in folder.glob(SHARDS)}  # each states how many there are
    weights = [f"model-{number:05}-of-{end}" for end in sorted(ends) for number in range(1, int(end[:5]) + 1)]
    if (folder / WEIGHTS).is_file() or not weights:
        weights = [WEIGHTS]
    tokenizer = next((name for name in TOKENIZERS if (folder / name).is_file()), TOKENIZERS[-1])
    files = [CONFIG, *weights, tokenizer]
    if missing := [name for name in files if not (folder / name).is_file()]:
        raise UserError(f"{folder}: does not contain {', '.join(missing)}; fetch the model by: {download}")
    try:
        _check_config(folder / CONFIG, shape)
    except OSError as error:
        raise UserError(f"{error.filename or folder}: {error.strerror}") from None
    return {
        "tokenizer": str(folder / tokenizer),
        "special_tokens": None,
        "checkpoint_files": weights,
        "parameters": shape.parameters,
        "files": [{"name": name, "bytes": (folder / name).stat().st_size} for name in files],
    }


def _check_config(path: Path, shape: Architecture) -> None:
    """Compare the shape that config.json states; keys with a default in Hugging Face's readers may be missing."""
    config = {"tie_word_embeddings": False, **read_object(path)}
    for key, value in shape.config.items():
        found = config.get(key)
        if type(found) is not type(value) or found != value:
            raise UserError(f"{path}, {key}: found {found!r}, expected {value}")


def read_model(folder: Path) -> dict[str, Any]:
    """Read provenance.json of a prepared model, and check its files against it.

    Raises
    ------
    UserError
        If a file is missing or not the one that was prepared. Of the user's files only the sizes are compared: the
        checksum of 16 GB takes longer than some runs.
    """
    facts = read_prepared(folder, "model")
    refuse_changed(folder, Path(facts["folder"]), facts["files"])
    return facts
