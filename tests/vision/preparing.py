"""What the tests of prepared sets share."""

from pathlib import Path
from typing import Any

import numpy as np
from pydantic import TypeAdapter

from conftest import refused
from multicard.programs.datasets import Dataset
from multicard.programs.provenance import ImageProvenance, read_unchanged
from multicard.programs.vision.prepare import prepare


def made(out: Path, name: str = "mine", **definition: Any) -> ImageProvenance:
    prepare(name, TypeAdapter(Dataset).validate_python(definition), out)
    return read_unchanged(out, ImageProvenance)


def refusal(out: Path, **definition: Any) -> str:
    return refused(out, lambda: made(out, **definition))


def numbered(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Random images of 28×28, and labels that count from 0 to 9 again and again."""
    return np.random.default_rng(seed).integers(0, 256, (count, 28, 28), np.uint8), np.arange(count) % 10
