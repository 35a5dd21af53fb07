"""The interface of a library that tunes language models; `multicard.programs.llm.libraries` lists the libraries."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from multicard.programs.machine import Machine
from multicard.programs.models import Architecture
from multicard.programs.provenance import ModelProvenance, TextProvenance

# What every library trains alike, so that runs of several libraries compare.
# The linear layers of a decoder layer that get adapters, by torchtune's names, as in its configurations of Llama 3.
ADAPTED_LINEARS = ("q_proj", "v_proj", "output_proj", "w1", "w2", "w3")
WEIGHT_DECAY = 0.01  # of all weights that AdamW trains
DPO_BETA = 0.1  # weight of DPO's rewards: how far the model may move away from the reference
EPOCHS = 1_000_000  # more than any run makes: the observer ends the program when everything is measured


class Library:
    """A back end of the program: a library that trains a prepared model on prepared texts.

    The module of a library imports neither torch nor the library itself, because planning needs none of them; only
    `tune` imports what trains. `p` is always a run's `LlmParameters`.
    """

    name: str
    label: str  # name in figures
    description: str  # for the schema and the documentation
    # How it tunes by each technique that it has, in words for the documentation, by the technique's name.
    techniques: ClassVar[Mapping[str, str]]
    estimates_peak = False  # True if `memory_estimate` counts what its models and losses keep
    shares_model = False  # True if the devices of a run share one copy of the model; else each device has a whole copy

    def missing(self, machine: Machine) -> str | None:
        """Return what `machine` lacks to run it; None if it lacks nothing."""
        raise NotImplementedError

    def python(self) -> str:
        """Return the path of the interpreter that runs it: by default this process's own."""
        return sys.executable

    def config_error(self, p: Any) -> str | None:
        """Return why it cannot do a run on any machine; None if it can."""
        return None

    def unsupported_reason(self, p: Any, machine: Machine, shape: Architecture | None) -> str | None:
        """Return why it cannot do a run on `machine`; None if it can. `shape`: the run's model; None if not known."""
        return None

    def distributed(self, p: Any) -> bool:
        """Return whether torchrun starts the ranks of a run and they form a process group."""
        devices: int = p.devices
        return devices > 1

    def compiles(self, p: Any) -> bool:
        """Return whether it compiles the model if a run sets `compile`."""
        return True

    def tune(self, p: Any, model: ModelProvenance, texts: TextProvenance, train_file: Path, output: Path) -> None:
        """Run one rank of the job until the observer ends the program.

        Parameters
        ----------
        model, texts
            Provenance of the prepared model and data set.
        train_file
            File of the samples.
        output
            Folder for the files that the library writes, such as its log of losses.

        Raises `UserError` if the run needs what is not installed, or if the samples are too few or too long.
        """
        raise NotImplementedError
