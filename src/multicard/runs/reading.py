"""Read a JSON file as a model of pydantic. Any error is one line that names the file."""

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
    """Read and check a JSON file. `prefix`: text before the fault in the message of an error.

    Raises `UserError` if the file is missing, does not parse, or does not fit the model. The message names the file. If
    the file does not fit the model, it also has the key, what was found and what was expected.
    """
    return checked(read_object(path), path, model, prefix)


def checked(
    content: Mapping[str, Any],
    path: Path,
    model: type[Model],
    prefix: str = "",
    context: Mapping[str, Any] | None = None,
) -> Model:
    """Return `content`, the parsed content of the JSON file `path`, as a model.

    `context`: passed to the validators of the model. Raises `UserError` as `read_model` if the model does not fit.
    """
    try:
        # As JSON, because only from JSON does a strict model take a list for a tuple, or a mapping for a dataclass.
        return model.model_validate_json(json.dumps(content), context=context)
    except ValidationError as error:
        raise UserError(f"{path}: {prefix}{first_fault(error)}") from None
