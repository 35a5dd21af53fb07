"""Records of prepared data sets and models, for tests of what reads them."""

from typing import Any

from multicard.programs.provenance import ImageProvenance, ModelProvenance, TextProvenance


def make_image_provenance(**fields: Any) -> ImageProvenance:
    """The digits as arrays, of ten classes, whose files are not listed; `fields`: other values."""
    values = {
        "dataset": "digits", "source": "digits", "origin": "scikit-learn", "split": "every fifth image is a test image",
        "limit": None, "stored_size": None, "classes": tuple("0123456789"), "train_samples": 1438, "test_samples": 359,
        "mean": (0.3, 0.3, 0.3), "std": (0.4, 0.4, 0.4), "files": (),
    }  # fmt: skip
    return ImageProvenance(**values | fields)


def make_text_provenance(**fields: Any) -> TextProvenance:
    """A shipped set of two instructions, whose file is not listed; `fields`: other values."""
    values = {
        "dataset": "facts", "source": "shipped-text", "kind": "instruction", "origin": "multicard's own",
        "limit": None, "train_samples": 2, "test_samples": 0, "files": (),
    }  # fmt: skip
    return TextProvenance(**values | fields)


def make_model_provenance(**fields: Any) -> ModelProvenance:
    """The model `tiny` in a folder `f`, whose files are not listed; `fields`: other values."""
    values = {
        "model": "tiny", "architecture": "tiny", "folder": "f", "tokenizer": "f/t", "special_tokens": "f/s",
        "checkpoint_files": ("c",), "parameters": 1, "files": (),
    }  # fmt: skip
    return ModelProvenance(**values | fields)
