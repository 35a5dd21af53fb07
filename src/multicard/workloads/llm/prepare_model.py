"""Prepare a language model: `tiny` is created, a user's folder is checked and never changed."""

from pathlib import Path
from typing import Any

from multicard.core.errors import UserError
from multicard.core.files import described, read_object, write_json
from multicard.core.prepared import PROVENANCE
from multicard.experiment.models import Model
from multicard.workloads.llm.tiny import CONFIG, WEIGHTS, make_tiny

INDEX = f"{WEIGHTS}.index.json"  # names the files of a checkpoint that has several
# Paths of torchtune's tokenizer in a model's folder. Hugging Face's repositories of Llama 3 have the second one.
TOKENIZERS = ("tokenizer.model", "original/tokenizer.model")


def prepare_model(name: str, model: Model, folder: Path, resources: Path) -> None:
    """Prepare the model `name`; provenance.json is written last, in `folder`, and records what the weights are.

    Its keys: `model` (the name), `architecture`, `folder` (of the weights), `tokenizer` (path), `special_tokens` (path;
    null for those of Llama 3), `checkpoint_files` (names in order), `parameters` (number of weights), `files` (for each
    file: name in the folder, bytes and, for `tiny`, SHA-256). A user's files get no checksum, because computing that of
    16 GB takes longer than some runs.

    `resources`: folder of the shipped inputs.

    Raises `UserError` if the user's folder is not a checkpoint of the architecture with a tokenizer.
    """
    # An earlier provenance must not vouch for what is not prepared yet.
    (folder / PROVENANCE).unlink(missing_ok=True)
    facts: dict[str, Any] = {"model": name, "architecture": model.architecture}
    if model.architecture == "tiny":
        files = make_tiny(folder, model.shape, resources / "tiny")
        facts |= _check(model, folder)
        facts |= {"special_tokens": str(files[-1].absolute()), "files": [described(file) for file in files]}
    elif model.folder is None:
        raise UserError(f"models.{name}.{model.config_error()}")
    else:
        facts |= _check(model, Path(model.folder))
    write_json(folder / PROVENANCE, facts)


def _check(model: Model, folder: Path) -> dict[str, Any]:
    """Check that a folder has weights, a tokenizer, and a config.json of the model's shape; return its provenance.

    Weights and tokenizer are not read here; torchtune checks them when it reads them. In config.json the key
    `tie_word_embeddings` may be missing: it is false then, as in Hugging Face's readers.

    Raises `UserError` if a file is missing, or config.json states another shape.
    """
    folder = folder.absolute()
    weights = [WEIGHTS]
    if (folder / INDEX).is_file():
        weights = sorted(set(read_object(folder / INDEX).get("weight_map", {}).values()))
    tokenizer = next((name for name in TOKENIZERS if (folder / name).is_file()), TOKENIZERS[-1])
    files = [CONFIG, *weights, tokenizer]
    if missing := [name for name in files if not (folder / name).is_file()]:
        fetched = f"fetch the model by: {model.download_command}"
        raise UserError(f"{folder}: does not contain {', '.join(missing)}; {fetched}")
    config = {"tie_word_embeddings": False, **read_object(folder / CONFIG)}
    for key, expected in model.shape.config.items():
        value = config.get(key)
        # Types are compared, too, because True equals 1 in Python.
        if type(value) is not type(expected) or value != expected:
            raise UserError(f"{folder / CONFIG}, {key}: found {value!r}, expected {expected}")
    return {
        "folder": str(folder),
        "tokenizer": str(folder / tokenizer),
        "special_tokens": None,
        "checkpoint_files": weights,
        "parameters": model.shape.parameters,
        "files": [{"name": name, "bytes": (folder / name).stat().st_size} for name in files],
    }
