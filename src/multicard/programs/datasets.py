"""The data sets that a configuration may name."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from multicard.core.files import exists

# The names under which MNIST is published.
MNIST_FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


class Strict(BaseModel):
    """Base of every section: unknown keys and silent conversions are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class Source(Strict):
    """Base of every data set."""

    def missing_files(self) -> str | None:
        """Return `key: what is missing` if a file or folder that `key` names does not exist, else None."""
        return None


class ImageSource(Source):
    """Base of the sets of images."""


class GrayscaleSource(ImageSource):
    """Base of the sets of small grayscale images: how many of them to use, and how to store them."""

    stored_size: int | None = Field(
        default=None,
        ge=8,
        le=4096,
        description="Write every image, upsampled to this edge length in pixels, as a JPEG file that training "
        "decodes; null keeps the small images in arrays.",
    )
    limit: int | None = Field(
        default=None, ge=1, description="Use only the first N training images, and a fifth as many test images."
    )


class Digits(GrayscaleSource):
    """The 1797 handwritten 8×8 digits inside scikit-learn; nothing is downloaded."""

    source: Literal["digits"]


class Mnist(GrayscaleSource):
    """MNIST in its four IDX files, split as it is published."""

    source: Literal["mnist"]
    folder: str = Field(
        min_length=1, description="Folder with the IDX files, directly or in MNIST/raw, gzipped or not."
    )
    download: bool = Field(default=False, description="Download missing files into the folder; default: false.")

    def files(self) -> dict[str, Path | None]:
        """Return the paths of the four files, by the names under which they are published; None for a missing file."""
        folders = [Path(self.folder) / "MNIST" / "raw", Path(self.folder)]
        paths: dict[str, Path | None] = {}
        for name in MNIST_FILES:
            candidates = [folder / f"{name}{suffix}" for folder in folders for suffix in ("", ".gz")]
            paths[name] = next((path for path in candidates if path.is_file()), None)
        return paths

    def missing_files(self) -> str | None:
        """Return which of the four files are missing; None if none is, or if they may be downloaded."""
        missing = [name for name, path in self.files().items() if path is None]
        if missing and not self.download:
            return f"folder: {self.folder} does not contain {', '.join(missing)}; download: true would fetch them"
        return None


class KaggleMnist(GrayscaleSource):
    """MNIST as Kaggle ships it; every tenth sample is a test image, since Kaggle keeps the test labels."""

    source: Literal["kaggle-mnist"]
    path: str = Field(min_length=1, description="train.csv, or its folder.")

    def missing_files(self) -> str | None:
        """Return that the path does not exist; None if it does."""
        return None if exists(Path(self.path)) else f"path: no such file or folder: {self.path}"


class ImageFolder(ImageSource):
    """A folder with class folders in `train/` and in `test/` or `val/`, or with class folders alone."""

    source: Literal["imagefolder"]
    folder: str = Field(
        min_length=1,
        description="Folder with train/ and test/ or val/, each with one folder per class; or with class folders "
        "only, in which every tenth image is a test image.",
    )
    unreadable: Literal["refuse", "skip"] = Field(
        default="refuse",
        description="What to do about images that cannot be decoded: `refuse` the folder (the default) or `skip` them.",
    )

    def parts(self) -> dict[str, str]:
        """Return the names of the folders with the `train` and the `test` images; empty if all folders are classes.

        Folders called train, test and val are classes themselves if each one that exists contains files and no folders.
        The test images are in test, or in val if only val contains folders.
        """
        contents = {name: _contents(Path(self.folder, name)) for name in ("train", "test", "val")}
        if all(entries in (None, {"file"}) for entries in contents.values()):
            return {}
        return {"train": "train", "test": _test_folder(contents)}

    def missing_files(self) -> str | None:
        """Return the first folder that is missing, or that there are no folders of classes; None if all is there."""
        folder = Path(self.folder)
        parts = [folder / part for part in self.parts().values()]
        missing = [path for path in (folder, *parts) if not path.is_dir()]
        if missing:
            return f"folder: no such folder: {missing[0]}"
        if "folder" not in (_contents(folder) or ()):
            return f"folder: found no folders in {folder}, expected train and test or val, or one per class"
        return None


def _test_folder(contents: Mapping[str, set[str] | None]) -> str:
    """Return the name of the folder with the test images.

    `contents`: for each of the folders train, test and val what `_contents` returned.

    >>> _test_folder({"train": {"folder"}, "test": None, "val": {"folder"}})
    'val'
    >>> _test_folder({"train": {"folder"}, "test": {"folder"}, "val": {"folder"}})
    'test'
    """
    for name in ("test", "val"):
        if "folder" in (contents[name] or ()):
            return name
    # Neither has class folders. The folder that is returned is then named in a message: the first one that exists.
    return "val" if contents["test"] is None and contents["val"] is not None else "test"


def _contents(folder: Path) -> set[str] | None:
    """Return which kinds of entries a folder contains, of `folder` and `file`; None if the folder does not exist."""
    if not folder.is_dir():
        return None
    with os.scandir(folder) as entries:
        return {"folder" if entry.is_dir() else "file" for entry in entries}


class Synthetic(ImageSource):
    """Random images that cost nothing to load: the upper bound of every loader."""

    source: Literal["synthetic"]
    classes: int = Field(default=10, ge=2, description="Number of classes; default: 10.")
    samples: int = Field(ge=1, description="Number of training samples; there are a tenth as many test samples.")


TextKind = Literal["instruction", "chat", "summary", "grammar", "completion", "preference"]

ShippedName = Literal["instructions", "chats", "summaries", "grammar", "articles", "preferences"]
PublishedName = Literal[
    "alpaca_cleaned", "samsum", "grammar", "slimorca", "cnn_dailymail", "wikitext", "hh_rlhf_helpful"
]

# The kind of the samples of each text set that comes with multicard.
SHIPPED: dict[ShippedName, TextKind] = {
    "instructions": "instruction",
    "chats": "chat",
    "summaries": "summary",
    "grammar": "grammar",
    "articles": "completion",
    "preferences": "preference",
}


@dataclass(frozen=True)
class Published:
    """A published text set: the kind of its samples, and its place at Hugging Face."""

    kind: TextKind
    repository: str
    subset: str | None = None
    revision: str | None = None


# The text sets that torchtune 0.6.1 supports, in the repositories of Hugging Face that have them now. Samsung/samsum
# does not exist any more, and ccdv/cnn_dailymail needs a loading script, which `datasets` 4 and later refuse. They are
# replaced by copies with the same columns. liweili/c4_200m has such a script, too, so its revision is the conversion to
# Parquet that Hugging Face made, which needs no script.
PUBLISHED: dict[PublishedName, Published] = {
    "alpaca_cleaned": Published("instruction", "yahma/alpaca-cleaned"),
    "samsum": Published("summary", "knkarthick/samsum"),
    "grammar": Published("grammar", "liweili/c4_200m", revision="refs/convert/parquet"),
    "slimorca": Published("chat", "Open-Orca/SlimOrca-Dedup"),
    "cnn_dailymail": Published("completion", "abisee/cnn_dailymail", subset="3.0.0"),
    "wikitext": Published("completion", "EleutherAI/wikitext_document_level", subset="wikitext-103-v1"),
    "hh_rlhf_helpful": Published("preference", "RLHFlow/HH-RLHF-Helpful-standard"),
}


class Text(Source):
    """Base of the sets of texts."""

    limit: int | None = Field(default=None, ge=1, description="Use only the first N samples.")

    @property
    def kind(self) -> TextKind:
        """Kind of the samples."""
        raise NotImplementedError


class ShippedText(Text):
    """A small set of texts that comes with multicard."""

    source: Literal["shipped-text"]
    texts: ShippedName = Field(description="Name of the set.")

    @property
    def kind(self) -> TextKind:
        """Kind of the samples."""
        return SHIPPED[self.texts]

    @property
    def file(self) -> Path:
        """Path of the file with its samples, one per line, relative to the folder of shipped inputs."""
        return Path("text", f"{self.texts}.jsonl")


class TextFile(Text):
    """A file of samples: JSON (a list), JSON lines, CSV or Parquet."""

    source: Literal["text-file"]
    path: str = Field(min_length=1, description="The file: .json, .jsonl, .csv or .parquet.")
    samples: TextKind = Field(
        description="Kind of samples, and so the columns: `instruction` (instruction, input, output), `chat` "
        "(messages), `summary` (dialogue, summary), `grammar` (input, output), `completion` (text), `preference` "
        "(chosen, rejected)."
    )

    @property
    def kind(self) -> TextKind:
        """Kind of the samples."""
        return self.samples

    def missing_files(self) -> str | None:
        """Return that the file does not exist; None if it does."""
        return None if Path(self.path).is_file() else f"path: no such file: {self.path}"


class PublishedText(Text):
    """A set that Hugging Face publishes, from a folder of the user or downloaded."""

    source: Literal["published-text"]
    texts: PublishedName = Field(description="Name of the set.")
    folder: str | None = Field(default=None, description="Folder of Parquet or JSON files, in Hugging Face's layout.")
    download: bool = Field(
        default=False, description="Download it from Hugging Face if no folder is given; default: false."
    )

    @property
    def kind(self) -> TextKind:
        """Kind of the samples."""
        return PUBLISHED[self.texts].kind

    @property
    def repository(self) -> str:
        """Name of its repository at Hugging Face."""
        return PUBLISHED[self.texts].repository

    def missing_files(self) -> str | None:
        """Return that the stated folder does not exist, or that none is stated and `download` is false; else None."""
        if self.folder is None:
            return None if self.download else f"folder: missing; download: true would fetch {self.repository}"
        return None if Path(self.folder).is_dir() else f"folder: no such folder: {self.folder}"


ImageDataset = Digits | ImageFolder | KaggleMnist | Mnist | Synthetic
TextDataset = PublishedText | ShippedText | TextFile
Dataset = Annotated[
    Digits | ImageFolder | KaggleMnist | Mnist | PublishedText | ShippedText | Synthetic | TextFile,
    Field(discriminator="source"),
]
# The class of data sets for each value of `source`, in the order in which messages list these values.
SOURCES: dict[str, type[Source]] = {
    "digits": Digits,
    "imagefolder": ImageFolder,
    "kaggle-mnist": KaggleMnist,
    "mnist": Mnist,
    "published-text": PublishedText,
    "shipped-text": ShippedText,
    "synthetic": Synthetic,
    "text-file": TextFile,
}
