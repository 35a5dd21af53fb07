"""Parameters as options on the command line of a training program: `--batch-size=32`."""

import argparse
import json
from collections.abc import Sequence
from typing import Any, TypeVar

from pydantic import ValidationError

from multicard.core.validation import first_fault
from multicard.runs.parameters import JobParameters

P = TypeVar("P", bound=JobParameters)


def options_of(parameters: JobParameters) -> list[str]:
    """Return the parameters that differ from their defaults as options.

    >>> from multicard.programs.vision.parameters import VisionParameters
    >>> options_of(VisionParameters(strategy="ddp-ds", devices=2, pin_memory=True))
    ['--devices=2', '--strategy=ddp-ds', '--pin-memory=true']
    """
    options = []
    for name, value in parameters.stated().items():
        if name != "workload":  # which the program itself implies
            text = value if isinstance(value, str) else json.dumps(value)
            options.append(f"{_option(name)}={text}")
    return options


def parse_options(
    parser: argparse.ArgumentParser, model: type[P], words: Sequence[str] | None = None
) -> tuple[P, argparse.Namespace]:
    """Return the parameters that a command line states, and the values of the parser's own options.

    Ends the process with a line if a value does not fit. `words`: the command line; None for that of this process.

    >>> from multicard.programs.vision.parameters import VisionParameters
    >>> parser = argparse.ArgumentParser()
    >>> _ = parser.add_argument("--data")
    >>> p, own = parse_options(parser, VisionParameters, ["--devices=2", "--strategy=ddp-ds", "--data=digits"])
    >>> p.ranks, own.data
    (2, 'digits')
    """
    parser.allow_abbrev = False
    for name, field in model.model_fields.items():
        if name != "workload":
            is_text = isinstance(field.default, str)
            description = (field.description or "").replace("%", "%%")
            parser.add_argument(
                _option(name), type=str if is_text else _value, default=argparse.SUPPRESS, help=description
            )
    arguments = parser.parse_args(words)
    stated: dict[str, Any] = {name: value for name, value in vars(arguments).items() if name in model.model_fields}
    try:
        return model.model_validate(stated), arguments
    except ValidationError as error:
        parser.error(first_fault(error))


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _value(text: str) -> Any:
    """Return a value that is not text; raise `ArgumentTypeError` if it is none.

    >>> _value("0.1"), _value("true"), _value("True"), _value("null")
    (0.1, True, True, None)
    """
    try:
        return json.loads(text.lower() if text in ("True", "False") else text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"found {text!r}, expected a number, true, false or null") from None
