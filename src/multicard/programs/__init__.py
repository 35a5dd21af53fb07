"""The programs that multicard runs, and how to find the one that a run, a definition or a table is about."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from multicard.core.entries import by_name
from multicard.programs.llm.program import LLM
from multicard.programs.program import Input, Program
from multicard.programs.script.program import SCRIPT
from multicard.programs.vision.program import VISION
from multicard.runs.parameters import DEFAULT_WORKLOAD, JobParameters

if TYPE_CHECKING:
    # Not imported at run time, because pandas takes long to import, and planning does not need it.
    import pandas as pd

# The programs by name, in the order in which documentation and schema list them.
PROGRAMS: Mapping[str, Program[Any]] = by_name(VISION, LLM, SCRIPT)

# The program that runs a user's command. `multicard scale` and `multicard analyze --as-runs` make configurations of it.
USER_PROGRAM: Program[Any] = SCRIPT


def parameters_of(values: Mapping[str, Any]) -> JobParameters:
    """Return `values` as checked parameters of the program that they name, or of the default one if they name none.

    Raises `ValidationError` if they do not fit the program, and `KeyError` if there is no such program.
    """
    return PROGRAMS[values.get("workload", DEFAULT_WORKLOAD)].parameters.model_validate(values)


def input_for(definition: Any) -> Input:
    """Return the input that prepares a data set or model; `definition`: the definition of it."""
    inputs = (entry for program in PROGRAMS.values() for entry in program.inputs.values())
    return next(entry for entry in inputs if isinstance(definition, entry.definition))


def program_of(table: "pd.DataFrame") -> Program[Any]:
    """Return the program of a table of runs, which are all of one program. The table must have a row."""
    return PROGRAMS[table["workload"].iloc[0]]
