"""Read the record of a run. All code that reads run.json uses `read_run`; any error is one line."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from multicard.core.errors import UserError
from multicard.core.files import read_object
from multicard.core.layout import RUN
from multicard.core.text import quoted
from multicard.core.validation import first_fault
from multicard.programs import PROGRAMS, parameters_of
from multicard.runs.parameters import JobParameters, run_id
from multicard.runs.reading import checked
from multicard.runs.record import RunRecord

NOT_A_RECORD = "not the record of a run"


def read_run(folder: Path) -> RunRecord:
    """Read and check run.json of a run directory.

    Raises `UserError` if the file is missing, does not parse, is not the record of a run, or has a name (`run`) that
    does not follow from its parameters. The message is one line with the file, the key, what was found and what was
    expected.
    """
    path = folder / RUN
    content = read_object(path)
    if "parameters" not in content:
        raise _not_a_record(path, "parameters: missing")
    parameters = _parameters(path, content["parameters"])
    record = checked(content, path, RunRecord, f"{NOT_A_RECORD}: ", {"parameters": parameters})
    name = run_id(parameters)
    if record.run != name:
        raise _not_a_record(path, f"run: found {quoted(record.run)}, expected {name!r}, which its parameters make")
    return record


def read_run_if_any(folder: Path) -> RunRecord | None:
    """Read run.json of a run directory as `read_run` does; None if the file does not exist, as before the run's end."""
    return read_run(folder) if (folder / RUN).exists() else None


def _parameters(path: Path, values: Any) -> JobParameters:
    """Return the parameters of a record, checked by the class of parameters of its program.

    Raises `UserError` if the program is not known, or if the parameters do not fit its class.
    """
    if not isinstance(values, Mapping):
        raise _not_a_record(path, f"parameters: found {quoted(values)}, expected a mapping")
    if values.get("workload") not in PROGRAMS:
        expected = f"expected one of {', '.join(PROGRAMS)}"
        raise _not_a_record(path, f"parameters.workload: found {quoted(values.get('workload'))}, {expected}")
    try:
        return parameters_of(values)
    except ValidationError as error:
        raise _not_a_record(path, f"parameters.{first_fault(error)}") from None


def _not_a_record(path: Path, fault: str) -> UserError:
    return UserError(f"{path}: {NOT_A_RECORD}: {fault}")
