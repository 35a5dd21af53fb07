"""Read a JSON file as a model of pydantic, with one line for whatever is wrong with it."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from multicard.core.errors import UserError
from multicard.core.files import read_object
from multicard.core.validation import first_fault

Model = TypeVar("Model", bound=BaseModel)


def read_model(path: Path, model: type[Model], prefix: str = "") -> Model:
    """Read and check a JSON file; `prefix`: what stands before a fault in the message.

    Raises `UserError` with the file, the key, what was found and what was expected, if the file is missing, does not
    parse, or is not of the model's form.
    """
    return checked(read_object(path), path, model, prefix)


def checked(
    content: Mapping[str, Any],
    path: Path,
    model: type[Model],
    prefix: str = "",
    context: Mapping[str, Any] | None = None,
) -> Model:
    """Return the content of the JSON file `path` as a model; `context`: for the model's validators.

    Raises `UserError` as `read_model`.
    """
    try:
        # Strict models take lists for tuples, and mappings for dataclasses, from JSON only.
        return model.model_validate_json(json.dumps(content), context=context)
    except ValidationError as error:
        raise UserError(f"{path}: {prefix}{first_fault(error)}") from None
