"""Prepare a language model: `tiny` is created, a user's folder is checked and never changed."""

from pathlib import Path
from typing import Any

from multicard.core.errors import UserError
from multicard.core.files import described, read_object, write_json
from multicard.core.prepared import PROVENANCE
from multicard.experiment.models import Model
from multicard.workloads.llm.tiny import CONFIG, WEIGHTS, make_tiny

INDEX = f"{WEIGHTS}.index.json"  # of a checkpoint of several files
# Hugging Face's repositories of Llama 3 hold the tokenizer that torchtune reads in the second place.
TOKENIZERS = ("tokenizer.model", "original/tokenizer.model")


def prepare_model(name: str, model: Model, folder: Path, resources: Path) -> None:
    """Prepare one model; provenance.json comes last in `folder` and records where the weights are and what they are.

    Its keys: `model` (its name), `architecture`, `folder` (of the weights), `tokenizer`, `special_tokens` (a file; null
    for those of Llama 3), `checkpoint_files` (names in order), `parameters` (their number), `files` (names from the
    folder, sizes, and checksums where the files are ours: that of 16 GB takes longer than some runs).

    Raises `UserError` if the user's folder is not a checkpoint of the architecture with a tokenizer.
    """
    # An earlier one must not stand for what is not prepared yet.
    (folder / PROVENANCE).unlink(missing_ok=True)
    made = []
    if model.architecture == "tiny":
        model = model.model_copy(update={"folder": str(folder.absolute())})
        made = make_tiny(folder, model.shape, resources / "tiny")
    facts = {"model": name, "architecture": model.architecture, **_checked(model)}
    if made:
        facts |= {"special_tokens": str(made[-1].absolute()), "files": [described(file) for file in made]}
    write_json(folder / PROVENANCE, facts)


def _checked(model: Model) -> dict[str, Any]:
    """Check that a folder has weights, a tokenizer, and a config.json of the shape; give its facts.

    What weights and tokenizer hold is found by torchtune. Of config.json, keys that have a default in Hugging Face's
    readers may be missing.
    """
    folder = Path(model.folder).absolute()
    weights = [WEIGHTS]
    if (folder / INDEX).is_file():
        weights = sorted(set(read_object(folder / INDEX).get("weight_map", {}).values()))
    tokenizer = next((name for name in TOKENIZERS if (folder / name).is_file()), TOKENIZERS[-1])
    files = [CONFIG, *weights, tokenizer]
    if missing := [name for name in files if not (folder / name).is_file()]:
        fetched = f"fetch the model by: {model.download_command}"
        raise UserError(f"{folder}: does not contain {', '.join(missing)}; {fetched}")
    config = {"tie_word_embeddings": False, **read_object(folder / CONFIG)}
    for key, value in model.shape.config.items():
        found = config.get(key)
        if type(found) is not type(value) or found != value:
            raise UserError(f"{folder / CONFIG}, {key}: found {found!r}, expected {value}")
    return {
        "folder": str(folder),
        "tokenizer": str(folder / tokenizer),
        "special_tokens": None,
        "checkpoint_files": weights,
        "parameters": model.shape.parameters,
        "files": [{"name": name, "bytes": (folder / name).stat().st_size} for name in files],
    }
