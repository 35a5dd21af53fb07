"""The data sets that a configuration may name."""

import os
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, get_args

from pydantic import BaseModel, ConfigDict, Field

# The names under which MNIST is published.
MNIST_FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


class Strict(BaseModel):
    """Base of every section: unknown keys and silent conversions are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class Source(Strict):
    """Base of every data set."""

    def missing_files(self) -> str | None:
        """Which files or folders are missing, as `key: what is missing`; None where all are there."""
        return None


class ImageSource(Source):
    """Base of the sets of images."""


class GrayscaleSource(ImageSource):
    """Base of the sets of small grayscale images: how many of them to use, and how to store them."""

    stored_size: int | None = Field(
        None,
        ge=8,
        le=4096,
        description="Write every image, upsampled to this edge length in pixels, as a JPEG file that training "
        "decodes; null keeps the small images in arrays.",
    )
    limit: int | None = Field(
        None, ge=1, description="Use only the first N training images, and a fifth as many test images."
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
    download: bool = Field(False, description="Download missing files into the folder; default: false.")

    def files(self) -> dict[str, Path | None]:
        """The four files by the names they are published under, each with its place; None where it is missing."""
        places = [Path(self.folder) / "MNIST" / "raw", Path(self.folder)]
        found: dict[str, Path | None] = {}
        for name in MNIST_FILES:
            candidates = [place / f"{name}{suffix}" for place in places for suffix in ("", ".gz")]
            found[name] = next((path for path in candidates if path.is_file()), None)
        return found

    def missing_files(self) -> str | None:
        """Name the files that are missing, unless they may be downloaded."""
        missing = [name for name, path in self.files().items() if path is None]
        if missing and not self.download:
            return f"folder: {self.folder} does not contain {', '.join(missing)}; download: true would fetch them"
        return None


class KaggleMnist(GrayscaleSource):
    """MNIST as Kaggle ships it; every tenth sample is a test image, since Kaggle keeps the test labels."""

    source: Literal["kaggle-mnist"]
    path: str = Field(min_length=1, description="train.csv, or its folder.")

    def missing_files(self) -> str | None:
        """State that there is nothing at the path."""
        return None if Path(self.path).exists() else f"path: no such file or folder: {self.path}"


class ImageFolder(ImageSource):
    """A folder with class folders in `train/` and in `test/` or `val/`, or with class folders alone."""

    source: Literal["imagefolder"]
    folder: str = Field(
        min_length=1,
        description="Folder with train/ and test/ or val/, each with one folder per class; or with class folders "
        "only, in which every tenth image is a test image.",
    )
    unreadable: Literal["refuse", "skip"] = Field(
        "refuse",
        description="What to do about images that cannot be decoded: `refuse` the folder (the default) or `skip` them.",
    )

    def parts(self) -> dict[str, str]:
        """Folders of the `train` and the `test` images by their names; none where there are only class folders.

        A folder called train, test or val that contains only files counts as a class where no other is a part. Of test
        and val, test is taken unless only val has class folders.
        """
        contents = {name: _contents(Path(self.folder, name)) for name in ("train", "test", "val")}
        if all(kinds in (None, {"file"}) for kinds in contents.values()):
            return {}
        tested = [name for name in ("test", "val") if contents[name] is not None]
        return {"train": "train", "test": max(tested, key=lambda name: "folder" in contents[name], default="test")}

    def missing_files(self) -> str | None:
        """Name the first folder that is missing."""
        folder = Path(self.folder)
        missing = [path for path in (folder, *(folder / part for part in self.parts().values())) if not path.is_dir()]
        if missing:
            return f"folder: no such folder: {missing[0]}"
        if "folder" not in _contents(folder):
            return f"folder: found no folders in {folder}, expected train and test or val, or one per class"
        return None


def _contents(folder: Path) -> set[str] | None:
    """Whether a folder contains a `folder`, a `file`, both or nothing; None where there is no such folder."""
    if not folder.is_dir():
        return None
    with os.scandir(folder) as entries:
        return {"folder" if entry.is_dir() else "file" for entry in entries}


class Synthetic(ImageSource):
    """Random images that cost nothing to load: the upper bound of every loader."""

    source: Literal["synthetic"]
    classes: int = Field(10, ge=2, description="Number of classes; default: 10.")
    samples: int = Field(ge=1, description="Number of training samples; there are a tenth as many test samples.")


TextKind = Literal["instruction", "chat", "summary", "grammar", "completion", "preference"]

# The embedded text sets, by the kind of their samples.
SHIPPED: dict[str, TextKind] = {
    "instructions": "instruction",
    "chats": "chat",
    "summaries": "summary",
    "grammar": "grammar",
    "articles": "completion",
    "preferences": "preference",
}


class Published(NamedTuple):
    """A published text set: the kind of its samples, and where Hugging Face has it."""

    kind: TextKind
    repository: str
    subset: str | None = None
    revision: str | None = None


# Those that torchtune 0.6.1 knows, where Hugging Face has them now. Samsung/samsum is gone and ccdv/cnn_dailymail needs
# a loading script, which `datasets` 4 and later refuse: these are copies with the same columns. The script of
# liweili/c4_200m is passed by with the hub's own conversion.
PUBLISHED: dict[str, Published] = {
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

    limit: int | None = Field(None, ge=1, description="Use only the first N samples.")


class ShippedText(Text):
    """A small set of texts that comes with multicard."""

    source: Literal["shipped-text"]
    texts: Literal[tuple(SHIPPED)] = Field(description="Name of the set.")

    @property
    def kind(self) -> TextKind:
        """What a sample is."""
        return SHIPPED[self.texts]

    @property
    def file(self) -> Path:
        """Its samples, one in each line, in the folder of what is shipped."""
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
        """What a sample is."""
        return self.samples

    def missing_files(self) -> str | None:
        """State that there is no file at the path."""
        return None if Path(self.path).is_file() else f"path: no such file: {self.path}"


class PublishedText(Text):
    """A set that Hugging Face publishes, from a folder of the user or downloaded."""

    source: Literal["published-text"]
    texts: Literal[tuple(PUBLISHED)] = Field(description="Name of the set.")
    folder: str | None = Field(None, description="Folder of Parquet or JSON files, in Hugging Face's layout.")
    download: bool = Field(False, description="Download it from Hugging Face if no folder is given; default: false.")

    @property
    def kind(self) -> TextKind:
        """What a sample is."""
        return PUBLISHED[self.texts].kind

    @property
    def repository(self) -> str:
        """Its name at Hugging Face."""
        return PUBLISHED[self.texts].repository

    def missing_files(self) -> str | None:
        """State that there is no folder, unless the set may be downloaded."""
        if self.folder is None:
            return None if self.download else f"folder: missing; download: true would fetch {self.repository}"
        return None if Path(self.folder).is_dir() else f"folder: no such folder: {self.folder}"


Dataset = Annotated[
    Digits | ImageFolder | KaggleMnist | Mnist | PublishedText | ShippedText | Synthetic | TextFile,
    Field(discriminator="source"),
]
# By the value of `source`.
SOURCES: dict[str, type[Source]] = {
    get_args(kind.model_fields["source"].annotation)[0]: kind for kind in get_args(get_args(Dataset)[0])
}
