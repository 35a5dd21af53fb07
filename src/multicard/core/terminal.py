"""Text and numbers on the terminal."""

from typing import Any

from rich.text import Text

from multicard.core.text import printable

_SECONDS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
_BYTES = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B"))


def plain(text: str, width: int | None = None) -> Text:
    """Text as it is: markup and terminal escapes have no effect; cut to a width."""
    return Text(printable(text, width))


def quantity(column: str, value: Any) -> tuple[str, str]:
    """Heading of a column, and a value of it with its unit, which the end of the column's name tells.

    >>> quantity("mean_s", 0.00213), quantity("bytes", 4096), quantity("ratio", 0.5), quantity("calls", 3)
    (('mean', '2.13 ms'), ('bytes', '4.10 kB'), ('ratio', '50.0 %'), ('calls', '3'))
    """
    if column.endswith("_bytes_per_s"):
        return column.removesuffix("_bytes_per_s"), "" if value is None else f"{_scaled(value, _BYTES)}/s"
    if column.endswith("_s"):
        return column.removesuffix("_s"), "" if value is None else _scaled(value, _SECONDS)
    if column.endswith("bytes"):
        return column.replace("_", " "), "" if value is None else _scaled(value, _BYTES)
    if column == "ratio":
        return column, "" if value is None else f"{value:.1%}".replace("%", " %")
    if isinstance(value, float):
        return column, f"{value:.4g}"
    return column, "" if value is None else str(value)


def _scaled(value: float, units: tuple[tuple[float, str], ...]) -> str:
    """Three digits in the largest unit that leaves something before the point."""
    if value == 0:
        return f"0 {units[0][1] if units is _SECONDS else 'B'}"
    scale, unit = next(((scale, unit) for scale, unit in units if abs(value) >= scale), units[-1])
    number = value / scale
    digits = max(0, 2 - len(str(int(abs(number)))) + 1)
    text = f"{number:.{digits}f}"
    return f"{text.rstrip('0').rstrip('.') if '.' in text and unit == 'B' else text} {unit}"
