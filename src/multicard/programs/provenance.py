"""provenance.json, in the folder of a prepared data set or model: what it is, where it came from, and its files.

The preparation writes it last, so that a folder that has the file is complete. The training program reads it, and the
launcher copies a part of it to run.json. A key that does not apply to a source is missing in the file. Its field in a
record is None.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Literal, Self, TypeVar

from pydantic import model_validator

from multicard.core.errors import UserError
from multicard.core.files import sha256, write_json
from multicard.core.prepared import PROVENANCE, is_unchanged
from multicard.core.values import JsonObject
from multicard.programs.datasets import TextKind
from multicard.programs.models import ArchitectureName
from multicard.runs.reading import read_model
from multicard.runs.record import ListedFile, RecordPart

Split = Literal["train", "test"]


class PreparedFile(RecordPart):
    """A file of a prepared data set or model, or a file that it was made from, or a tree of image files."""

    # Path relative to the folder of the data set or model.
    name: str
    # Number of the files of a tree; None of a file.
    files: int | None = None
    # Size; of a tree the sizes of all files together.
    bytes: int
    # Checksum; of a tree that of the list of its files (`vision.images.write_tree`). None of a user's weights.
    sha256: str | None = None

    @classmethod
    def of(cls, path: Path) -> Self:
        """Return name, size and checksum of a file."""
        return cls(name=path.name, bytes=path.stat().st_size, sha256=sha256(path))

    def is_unchanged(self, folder: Path) -> bool:
        """Return whether the file in `folder` is as it was when it was prepared.

        A file is compared by its size, and by its checksum if that is known. The files of a tree lie two levels below
        its path, and only their number and their total size are compared: every rank does this, and reading a hundred
        thousand files would take longer than some runs.
        """
        path = folder / self.name
        if self.files is None:
            return is_unchanged(path, self.bytes, self.sha256)
        sizes = [file.stat().st_size for file in path.glob("*/*")]
        return (len(sizes), sum(sizes)) == (self.files, self.bytes)


class UnreadableImage(RecordPart):
    """An image of a user that cannot be decoded, which training leaves out."""

    # Path relative to the user's folder.
    name: str
    # Why it cannot be decoded.
    reason: str


class _ProvenanceFile(RecordPart):
    """Base of the forms of provenance.json."""

    def as_json(self) -> JsonObject:
        """Return the content of provenance.json: the fields that were given."""
        return self.model_dump(mode="json", exclude_unset=True)


class ImageProvenance(_ProvenanceFile):
    """provenance.json of a set of images."""

    WHAT: ClassVar[str] = "data set"

    # Name of the data set in the configuration.
    dataset: str
    source: Literal["digits", "imagefolder", "kaggle-mnist", "mnist", "synthetic"]
    # In words, where the images come from.
    origin: str
    # True if the files are MNIST's as published; None of another source than mnist.
    verified: bool | None = None
    # The user's folder, of the sources imagefolder and mnist.
    folder: str | None = None
    # The folder in `folder` with the images of each split, by its name, of the source imagefolder; empty if one folder
    # has the images of both splits.
    parts: Mapping[str, str] | None = None
    # Files of the user that the images were read from, of the sources mnist and kaggle-mnist.
    source_files: tuple[PreparedFile, ...] | None = None
    # In words, which images are test images.
    split: str
    # Most training images, and a fifth as many test images; None for all.
    limit: int | None = None
    # Edge length in pixels of the stored image files; None if the images are in arrays, or are not stored.
    stored_size: int | None = None
    # Names of the classes, by their number.
    classes: tuple[str, ...]
    train_samples: int
    test_samples: int
    # Mean and standard deviation of each channel, of pixels scaled to [0, 1].
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    # Images of the source imagefolder that are left out.
    unreadable: tuple[UnreadableImage, ...] = ()
    files: tuple[PreparedFile, ...]

    @model_validator(mode="after")
    def _has_folder_of_user(self) -> Self:
        if self.source == "imagefolder" and self.folder is None:
            raise ValueError("folder: missing, expected the folder of the images")
        return self

    def samples(self, split: Split) -> int:
        """Return the number of images of a split."""
        return self.train_samples if split == "train" else self.test_samples

    def image_folder(self, prepared: Path) -> Path:
        """Return the folder of the image files of a data set that has some; `prepared`: the folder of this file.

        The user's images are read where they are.
        """
        if self.source == "imagefolder" and self.folder is not None:
            return Path(self.folder)
        return prepared


class TextProvenance(_ProvenanceFile):
    """provenance.json of a set of texts."""

    WHAT: ClassVar[str] = "set of texts"

    # Name of the data set in the configuration.
    dataset: str
    source: Literal["published-text", "shipped-text", "text-file"]
    kind: TextKind
    # Repository at Hugging Face, and the subset of it that was read, of the source published-text.
    repository: str | None = None
    subset: str | None = None
    # In words, where the texts come from.
    origin: str
    # The user's folder of a published set; None if it was downloaded.
    folder: str | None = None
    # Commit of the repository that was downloaded.
    revision: str | None = None
    # File of the user that the texts were read from, of the source text-file.
    source_files: tuple[PreparedFile, ...] | None = None
    # Most samples; None for all.
    limit: int | None
    train_samples: int
    test_samples: int
    # Number of invalid samples of a published set, which were skipped, and what is wrong with the first of them.
    left_out: int | None = None
    first_left_out: str | None = None
    # The file of the samples, alone.
    files: tuple[PreparedFile, ...]


class ModelProvenance(_ProvenanceFile):
    """provenance.json of a language model."""

    WHAT: ClassVar[str] = "model"

    # Name of the model in the configuration.
    model: str
    architecture: ArchitectureName
    # Folder of `checkpoint_files` and `files`: the user's, or that of provenance.json.
    folder: str
    # Path of the tokenizer.
    tokenizer: str
    # Path of the list of special tokens; None for those of Llama 3.
    special_tokens: str | None
    # Names of the files of the weights, in order.
    checkpoint_files: tuple[str, ...]
    # Number of weights.
    parameters: int
    # Checksums are known of `tiny` only: computing those of 16 GB of a user takes longer than some runs.
    files: tuple[PreparedFile, ...]


Provenance = ImageProvenance | TextProvenance | ModelProvenance
Form = TypeVar("Form", ImageProvenance, TextProvenance, ModelProvenance)


def write_provenance(folder: Path, provenance: Provenance) -> None:
    """Write provenance.json of the data set or model that is prepared in `folder`."""
    write_json(folder / PROVENANCE, provenance.as_json())


def read_provenance(folder: Path, form: type[Form]) -> Form:
    """Read provenance.json of a prepared data set or model.

    Raises `UserError` if the file is missing: then `folder` was not prepared, or not to the end. Raises it, too, if the
    file does not fit `form`, with the file, the key, what was found and what was expected.
    """
    if not (folder / PROVENANCE).is_file():
        raise UserError(f"{folder}: found no {PROVENANCE}, expected a prepared {form.WHAT}")
    return read_model(folder / PROVENANCE, form)


def read_unchanged(folder: Path, form: type[Form]) -> Form:
    """Read provenance.json as `read_provenance` does, and check the files and trees of files that it lists.

    Raises `UserError` for the first file that is missing or has changed.
    """
    provenance = read_provenance(folder, form)
    files_folder = Path(provenance.folder) if isinstance(provenance, ModelProvenance) else folder
    for file in provenance.files:
        if not file.is_unchanged(files_folder):
            path = files_folder / file.name
            raise UserError(f"{path}: missing or changed since it was prepared; delete {folder} to prepare it again")
    return provenance


def files_of_record(provenance: Provenance) -> tuple[ListedFile, ...]:
    """Return the files of a prepared data set or model in the form in which run.json lists them."""
    return tuple(ListedFile(**file.model_dump(exclude_unset=True)) for file in provenance.files)
