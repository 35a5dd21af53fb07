"""The language models that a configuration may name."""

import shlex
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from multicard.experiment.architectures import ARCHITECTURES, REPOSITORIES, Architecture
from multicard.experiment.datasets import Strict


class Model(Strict):
    """A model by its architecture, and the folder of its weights."""

    architecture: Annotated[
        Literal[tuple(ARCHITECTURES)],
        Field(description="`tiny` is made on the spot, with random weights; the others are Meta's."),
    ]
    folder: Annotated[
        str | None,
        Field(
            description="Folder of the weights as Hugging Face ships them, with config.json and the tokenizer; it is "
            "never downloaded. None for `tiny`."
        ),
    ] = None

    @property
    def shape(self) -> Architecture:
        """Shape of the model."""
        return ARCHITECTURES[self.architecture]

    @property
    def download_command(self) -> str:
        """The command that would fetch the weights; Meta's own copy of them, which is not read, is left out."""
        where = shlex.quote(self.folder or f"weights/{self.architecture}")
        unread = "'original/consolidated.*'"
        return f"tune download {REPOSITORIES[self.architecture]} --output-dir {where} --ignore-patterns {unread}"

    def fault(self) -> str | None:
        """Say which key is wrong, as `key: what is wrong`; None where none is."""
        if self.architecture == "tiny":
            return None if self.folder is None else "folder: the model tiny is made on the spot and has no folder"
        return None if self.folder else f"folder: missing; the weights can be fetched by: {self.download_command}"

    def absent(self) -> str | None:
        """Say where the folder of the weights is not there."""
        there = self.folder is None or Path(self.folder).is_dir()
        return None if there else f"no weights: no such folder: {self.folder}"
