"""How often each configuration of a scenario runs: a fixed number of times, or until its comparisons are decided."""

import re
from typing import Any

from pydantic import Field, GetJsonSchemaHandler, field_validator, model_serializer, model_validator
from pydantic_core import CoreSchema

from multicard.programs.datasets import Strict

MOST_REPEATS = 1000
# Each further repeat is one more look at the results, so that intervals are wider: see `stats.looks`.
MOST_LOOKED_AT = 100
# Repeats that scenarios have at least and at most if repeats are added until they are decided.
LEAST, MOST = 3, 10
PERCENTAGE = re.compile(r"(\d+(?:\.\d+)?)%")


class Repeats(Strict):
    """The number of repeats of each run of a scenario: fixed, or from `least` to `most`, until all is decided.

    In a configuration it is a number, or a mapping with `until`. Without `until`, `least` and `most` are equal.

    >>> Repeats.model_validate(3), Repeats.model_validate({"until": "5%"})
    (Repeats(least=3, most=3, until=None), Repeats(least=3, most=10, until=0.05))
    """

    least: int = Field(default=LEAST, ge=2, le=MOST_LOOKED_AT, description="Repeats that run in any case.")
    most: int = Field(default=MOST, ge=2, le=MOST_LOOKED_AT, description="Repeats that run at most.")
    until: float | None = Field(
        description="A percentage, such as 5%. Repeats of all configurations are added until, for every two of them, "
        "the 95% interval of the ratio of their speeds excludes 1, or reaches this far to each side at most."
    )

    @classmethod
    def once(cls) -> "Repeats":
        """Return one repeat, as scenarios have that state none."""
        return cls.model_validate(1)

    @model_validator(mode="wrap")
    @classmethod
    def _from_number(cls, value: Any, make: Any) -> "Repeats":
        """Make repeats from a number, the short form of a fixed number of repeats, or from a mapping."""
        if isinstance(value, Repeats | dict):
            return make(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError(f"found {value!r}, expected a whole number, or a mapping with until")
        if value < 1:
            raise ValueError(f"found {value}, expected 1 or more")
        if value > MOST_REPEATS:
            raise ValueError(f"found {value}, expected {MOST_REPEATS} or less")
        return cls.model_construct(least=value, most=value, until=None)

    @field_validator("until", mode="before")
    @classmethod
    def _as_share(cls, value: Any) -> float:
        """Return the share that a percentage states."""
        percentage = PERCENTAGE.fullmatch(value) if isinstance(value, str) else None
        if percentage is None or not 0 < float(percentage[1]) < 100:
            raise ValueError(f"found {value!r}, expected a percentage above 0% and below 100% such as 5%")
        return float(percentage[1]) / 100

    @model_validator(mode="after")
    def _is_ordered(self) -> "Repeats":
        if self.least > self.most:
            raise ValueError(f"least: found {self.least}, expected no more than most: {self.most}")
        return self

    @model_serializer
    def _as_configured(self) -> int | dict[str, Any]:
        """Return the form that a configuration has."""
        if self.until is None:
            return self.least
        return {"until": f"{100 * self.until:.10g}%", "least": self.least, "most": self.most}

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Return the JSON schema of both forms."""
        mapping = handler.resolve_ref_schema(handler(core_schema))
        until = {"type": "string", "pattern": r"^\d+(\.\d+)?%$"}
        mapping["properties"]["until"] = {**until, "description": mapping["properties"]["until"]["description"]}
        number = {"type": "integer", "minimum": 1, "maximum": MOST_REPEATS}
        mapping["description"] = "Repeats are added until all comparisons are decided."
        return {"anyOf": [number, mapping]}

    @property
    def looks(self) -> int:
        """How often the results are looked at, at most: after each repeat from the second on, or once if it is fixed.

        It does not depend on `least`, so that repeats that are added to `least` by hand widen no interval.
        """
        return 1 if self.until is None else self.most - 1
