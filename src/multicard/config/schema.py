"""The JSON schema of configuration files. Editors use its copy in `workflow/schemas/config.schema.json`."""

from typing import Any, TypeAlias

from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema

from multicard.config.experiment import Experiment
from multicard.programs import PROGRAMS
from multicard.runs.parameters import ARGS

# A JSON schema, or the schema of a part of it, as pydantic makes it (JSON Schema, draft 2020-12).
JsonSchema: TypeAlias = dict[str, Any]


def json_schema() -> JsonSchema:
    """Return the JSON schema of a configuration file.

    Parameters under `fixed` have the descriptions of their programs. The elements of a list under `vary` refer to the
    parameter under `fixed`, so that an editor shows the same description for both.
    """
    schema = Experiment.model_json_schema(schema_generator=_WithoutFieldTitles)
    # Removed because the default depends on the name of the file.
    del schema["properties"]["results"]["default"]
    fixed = schema["$defs"]["Fixed"]["properties"]
    for name, parameter in fixed.items():
        # Removed because the default in the schema is null, which stands for an unstated parameter. The true default
        # depends on the program.
        del parameter["default"]
        fixed[name] = _in_order(parameter | {"description": _description(name)})
    vary = schema["$defs"]["Vary"]["properties"]
    for name, values in vary.items():
        if name == ARGS:
            continue
        del values["default"]
        about = {"description": f"Values of {name}, in order.", "items": {"$ref": f"#/$defs/Fixed/properties/{name}"}}
        vary[name] = _in_order(values | about)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def _in_order(schema: JsonSchema) -> JsonSchema:
    """Return a schema with its keys sorted. pydantic sorts the keys of the rest of the schema, too."""
    return dict(sorted(schema.items()))


class _WithoutFieldTitles(GenerateJsonSchema):
    """Generates schemas without the titles that only repeat the keys."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def _description(parameter: str) -> str:
    """Return the description of a parameter. If programs describe it differently, each text follows their names."""
    programs: dict[str, list[str]] = {}
    for program, field in _fields(parameter).items():
        programs.setdefault(field.description or "", []).append(program)
    if len(programs) == 1:
        return next(iter(programs))
    return " ".join(f"{', '.join(names)}: {description}" for description, names in programs.items())


def _fields(parameter: str) -> dict[str, FieldInfo]:
    """Return the field of a parameter in each program that has it, by the program's name."""
    fields = {name: program.parameters.model_fields.get(parameter) for name, program in PROGRAMS.items()}
    return {name: field for name, field in fields.items() if field is not None}
