"""Prepare a language model: `tiny` is created, a user's folder is checked and never changed."""

from pathlib import Path
from typing import NamedTuple

from multicard.core.errors import UserError
from multicard.core.files import read_object
from multicard.core.prepared import PROVENANCE
from multicard.programs.llm.tiny import CONFIG, WEIGHTS, make_tiny
from multicard.programs.models import Model
from multicard.programs.provenance import ModelProvenance, PreparedFile, write_provenance

INDEX = f"{WEIGHTS}.index.json"  # names the files of a checkpoint that has several
# Paths of torchtune's tokenizer in a model's folder. Hugging Face's repositories of Llama 3 have the second one.
TOKENIZERS = ("tokenizer.model", "original/tokenizer.model")


class _Checkpoint(NamedTuple):
    """The files of a model, by their names in `folder`."""

    # An absolute path.
    folder: Path
    # In order.
    weights: list[str]
    tokenizer: str

    @property
    def files(self) -> list[str]:
        """All files."""
        return [CONFIG, *self.weights, self.tokenizer]


def prepare_model(name: str, model: Model, folder: Path, resources: Path) -> None:
    """Prepare the model `name`; provenance.json is written last, in `folder`, and records what the weights are.

    `resources`: folder of the shipped inputs.

    Raises `UserError` if the user's folder is not a checkpoint of the architecture with a tokenizer.
    """
    # An earlier provenance must not vouch for what is not prepared yet.
    (folder / PROVENANCE).unlink(missing_ok=True)
    special_tokens = None
    if model.architecture == "tiny":
        paths = make_tiny(folder, model.shape, resources / "tiny")
        checkpoint = _check(model, folder)
        special_tokens = str(paths[-1].absolute())
        files = [PreparedFile.of(path) for path in paths]
    elif model.folder is None:
        raise UserError(f"models.{name}.{model.config_error()}")
    else:
        checkpoint = _check(model, Path(model.folder))
        sizes = {file: (checkpoint.folder / file).stat().st_size for file in checkpoint.files}
        files = [PreparedFile(name=file, bytes=size) for file, size in sizes.items()]
    provenance = ModelProvenance(
        model=name,
        architecture=model.architecture,
        folder=str(checkpoint.folder),
        tokenizer=str(checkpoint.folder / checkpoint.tokenizer),
        special_tokens=special_tokens,
        checkpoint_files=tuple(checkpoint.weights),
        parameters=model.shape.parameters,
        files=tuple(files),
    )
    write_provenance(folder, provenance)


def _check(model: Model, folder: Path) -> _Checkpoint:
    """Check that a folder has weights, a tokenizer, and a config.json of the model's shape; return its files.

    Weights and tokenizer are not read here; torchtune checks them when it reads them. In config.json the key
    `tie_word_embeddings` may be missing: it is false then, as in Hugging Face's readers.

    Raises `UserError` if a file is missing, or config.json states another shape.
    """
    folder = folder.absolute()
    weights = [WEIGHTS]
    if (folder / INDEX).is_file():
        weights = sorted(set(read_object(folder / INDEX).get("weight_map", {}).values()))
    tokenizer = next((name for name in TOKENIZERS if (folder / name).is_file()), TOKENIZERS[-1])
    checkpoint = _Checkpoint(folder, weights, tokenizer)
    if missing := [name for name in checkpoint.files if not (folder / name).is_file()]:
        fetched = f"fetch the model by: {model.download_command}"
        raise UserError(f"{folder}: does not contain {', '.join(missing)}; {fetched}")
    config = {"tie_word_embeddings": False, **read_object(folder / CONFIG)}
    for key, expected in model.shape.config.items():
        value = config.get(key)
        # Types are compared, too, because True equals 1 in Python.
        if type(value) is not type(expected) or value != expected:
            raise UserError(f"{folder / CONFIG}, {key}: found {value!r}, expected {expected}")
    return checkpoint
