"""Prepare a language model: `tiny` is created, a user's folder is checked and never changed."""

from pathlib import Path
from typing import Any

from multicard.core.errors import UserError
from multicard.core.files import described, read_object, write_json
from multicard.core.prepared import PROVENANCE, read_prepared, refuse_changed
from multicard.core.text import first_of
from multicard.experiment.models import Architecture, Model
from multicard.workloads.llm.tiny import SPECIAL_TOKENS, SPECIAL_TOKENS_FILE, make_tiny
from multicard.workloads.llm.vocabulary import read_vocabulary
from multicard.workloads.llm.weights import INDEX, count_parameters, weight_files

CONFIG = "config.json"
# Hugging Face's repositories of Llama 3 hold the tokenizer that torchtune reads in the second place.
TOKENIZERS = ("tokenizer.model", "original/tokenizer.model")
LLAMA3_SPECIAL_TOKENS = 256


def prepare_model(name: str, model: Model, folder: Path, resources: Path) -> None:
    """Prepare one model; provenance.json comes last in `folder` and records where the weights are and what they are.

    The keys of provenance.json: `model` (its name), `architecture`, `folder` (of the weights), `tokenizer`,
    `special_tokens` (a file; null for those of Llama 3), `checkpoint_files` (names in order), `parameters` (their
    number), `files` (names from the folder, sizes, and checksums where the files are ours).

    Raises
    ------
    UserError
        If the user's folder is not a complete checkpoint of the architecture with a tokenizer that fits.
    """
    if wrong := model.config_error():
        raise UserError(f"models.{name}.{wrong}")
    if missing := model.missing_files():
        raise UserError(f"models.{name}: {missing}; fetch the model by: {model.download_command}")
    # An earlier one must not stand for what is not prepared yet.
    (folder / PROVENANCE).unlink(missing_ok=True)
    if model.architecture == "tiny":
        place = folder.absolute()
        made = make_tiny(place, model.shape, resources)
        facts = check_folder(place, model.shape, len(SPECIAL_TOKENS), "")
        facts |= {"special_tokens": str(place / SPECIAL_TOKENS_FILE), "files": [described(file) for file in made]}
    else:
        place = Path(model.folder).absolute()
        facts = check_folder(place, model.shape, LLAMA3_SPECIAL_TOKENS, model.download_command)
    write_json(folder / PROVENANCE, {"model": name, "architecture": model.architecture, "folder": str(place), **facts})


def check_folder(folder: Path, shape: Architecture, special_tokens: int, download: str) -> dict[str, Any]:
    """Check that a folder is a complete checkpoint of this shape and a tokenizer that fits; give its facts.

    Only headers of the weights are read. `special_tokens` counts those above the tokenizer's own, `download` is the
    command that fetches what is missing.

    Raises
    ------
    UserError
        In one line, at the first error.
    """
    try:
        names, tokenizer = _present(folder, download)
        _check_config(folder / CONFIG, shape)
        parameters = count_parameters([folder / name for name in names], shape)
        _check_tokenizer(folder / tokenizer, shape.vocabulary, special_tokens)
        files = [CONFIG, *([INDEX] if (folder / INDEX).is_file() else []), *names, tokenizer]
        return {
            "tokenizer": str(folder / tokenizer),
            "special_tokens": None,
            "checkpoint_files": names,
            "parameters": parameters,
            "files": [{"name": name, "bytes": (folder / name).stat().st_size} for name in files],
        }
    except OSError as error:
        raise UserError(f"{error.filename or folder}: {error.strerror}") from None


def _present(folder: Path, download: str) -> tuple[list[str], str]:
    """Names of the weight files and of the tokenizer, all of which are there."""
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder; fetch the model by: {download}")
    weights = weight_files(folder)
    tokenizer = next((name for name in TOKENIZERS if (folder / name).is_file()), None)
    missing = [name for name in (CONFIG, *weights) if not (folder / name).is_file()]
    if tokenizer is None:
        other = " (tokenizer.json is another form)" if (folder / "tokenizer.json").is_file() else ""
        missing.append(TOKENIZERS[-1] + other)
    if missing:
        raise UserError(f"{folder}: does not contain {first_of(missing, 6)}; fetch the model by: {download}")
    return weights, tokenizer


def _check_config(path: Path, shape: Architecture) -> None:
    """Compare the shape that config.json states; keys with a default in Hugging Face's readers may be missing."""
    config = {"tie_word_embeddings": False, **read_object(path)}
    # Older files leave it out, and torchtune computes it.
    if config.get("head_dim") is None:
        config["head_dim"] = shape.embedding // shape.heads
    for key, value in (shape.config | {"head_dim": shape.embedding // shape.heads}).items():
        if key not in config:
            raise UserError(f"{path}, {key}: missing, expected {value}")
        found = config[key]
        if type(found) is not type(value) or found != value:
            raise UserError(f"{path}, {key}: found {found!r}, expected {value}")


def _check_tokenizer(path: Path, vocabulary: int, special_tokens: int) -> None:
    found, expected = len(read_vocabulary(path)), vocabulary - special_tokens
    if found != expected:
        raise UserError(
            f"{path}: a tokenizer that does not fit the weights: found {found} tokens, expected {expected}, with "
            f"{special_tokens} special ones above them"
        )


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
