"""Prepare a language model: `tiny` is created, a user's folder is checked and never changed."""

import base64
import math
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from multicard.core.errors import UserError
from multicard.core.files import described, read_object, write_json
from multicard.core.prepared import PROVENANCE, read_prepared, refuse_changed
from multicard.core.text import printable
from multicard.experiment.models import Architecture, Model
from multicard.workloads.llm.tiny import CONFIG, SPECIAL_TOKENS, SPECIAL_TOKENS_FILE, WEIGHTS, make_tiny

SHARDS = "model-*-of-*.safetensors"
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
        made = make_tiny(place, model.shape, resources / "tiny")
        facts = check_folder(place, model.shape, SPECIAL_TOKENS, "")
        facts |= {"special_tokens": str(place / SPECIAL_TOKENS_FILE), "files": [described(file) for file in made]}
    else:
        place = Path(model.folder).absolute()
        facts = check_folder(place, model.shape, LLAMA3_SPECIAL_TOKENS, model.download_command)
    write_json(folder / PROVENANCE, {"model": name, "architecture": model.architecture, "folder": str(place), **facts})


def check_folder(folder: Path, shape: Architecture, special_tokens: int, download: str) -> dict[str, Any]:
    """Check that a folder is a complete checkpoint of this shape and a tokenizer that fits; give its facts.

    Of the weights only headers are read. `special_tokens` counts those above the tokenizer's own, `download` is the
    command that fetches what is missing.

    Raises
    ------
    UserError
        In one line, at the first error.
    """
    weights = sorted(file.name for file in folder.glob(SHARDS))
    if (folder / WEIGHTS).is_file() or not weights:
        weights = [WEIGHTS]
    tokenizer = next((name for name in TOKENIZERS if (folder / name).is_file()), TOKENIZERS[-1])
    files = [CONFIG, *weights, tokenizer]
    if missing := [name for name in files if not (folder / name).is_file()]:
        raise UserError(f"{folder}: does not contain {', '.join(missing)}; fetch the model by: {download}")
    try:
        _check_config(folder / CONFIG, shape)
        parameters = sum(_count_weights(folder / name) for name in weights)
        tokens = _count_tokens(folder / tokenizer)
    except OSError as error:
        raise UserError(f"{error.filename or folder}: {error.strerror}") from None
    if parameters != shape.parameters:
        raise UserError(f"{folder}: found {parameters} weights in {', '.join(weights)}, expected {shape.parameters}")
    if tokens != shape.vocabulary - special_tokens:
        raise UserError(
            f"{folder / tokenizer}: a tokenizer that does not fit the weights: found {tokens} tokens, expected "
            f"{shape.vocabulary - special_tokens}, with {special_tokens} special ones above them"
        )
    return {
        "tokenizer": str(folder / tokenizer),
        "special_tokens": None,
        "checkpoint_files": weights,
        "parameters": parameters,
        "files": [{"name": name, "bytes": (folder / name).stat().st_size} for name in files],
    }


def _check_config(path: Path, shape: Architecture) -> None:
    """Compare the shape that config.json states; keys with a default in Hugging Face's readers may be missing."""
    config = {"tie_word_embeddings": False, **read_object(path)}
    for key, value in shape.config.items():
        found = config.get(key)
        if type(found) is not type(value) or found != value:
            raise UserError(f"{path}, {key}: found {found!r}, expected {value}")


def _count_weights(file: Path) -> int:
    """Weights in a safetensors file, whose own reader checks that all of its data is there."""
    try:
        with safe_open(file, framework="numpy") as stored:
            shapes = {name: stored.get_slice(name).get_shape() for name in stored.keys()}  # noqa: SIM118, no mapping
    except SafetensorError as error:
        raise UserError(f"{file}: not a complete safetensors file: {printable(str(error))}") from error
    # Older checkpoints store what follows from the base of positions; torchtune skips it.
    return sum(math.prod(shape) for name, shape in shapes.items() if not name.endswith("rotary_emb.inv_freq"))


def _count_tokens(path: Path) -> int:
    """Tokens of a file that tiktoken reads: one `token in base64, rank` a line."""
    lines = path.read_bytes().splitlines()
    for count, line in enumerate(lines):
        try:
            token, rank = line.split()
            in_order = int(rank) == count and base64.b64decode(token, validate=True)
        except ValueError:
            in_order = False
        if not in_order:
            raise UserError(f"{path}, line {count + 1}: expected a token in base64 and the rank {count}")
    return len(lines)


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
