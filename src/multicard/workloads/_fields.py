"""How the parameters of workloads are declared."""

from typing import Any

from pydantic import Field


def labelled(label: str, description: str, **limits: Any) -> Any:
    """A parameter that stands in a run's id by its label where it differs from its default; `limits`: as of Field."""
    return Field(description=description, json_schema_extra={"label": label}, **limits)
