"""Read numbers of JSON as integers, even if the file has them as texts or with a decimal point."""

import re
from decimal import Decimal, InvalidOperation
from typing import Any

# A value of JSON that is not an object, a list or a boolean.
Scalar = int | float | str | None
# A time or duration in microseconds. It is decimal if the file has it as a text.
Microseconds = int | float | Decimal

# Tables hold 64-bit integers.
LEAST, MOST = -(1 << 63), (1 << 63) - 1

# A time with more digits before its decimal point is refused, because an exact conversion of a text such as
# "1e999999999" would never end.
MOST_TIME_DIGITS = 30

_LAST_NUMBER = re.compile(r"(?:^[^0-9]*|[^0-9A-Za-z])([0-9]{1,18})$")


def scalar(value: Any) -> Scalar:
    """Return a value of JSON as it is if it is a number or a text; None for any other value."""
    return value if isinstance(value, int | float | str) and not isinstance(value, bool) else None


def whole(value: Scalar) -> int | None:
    """Return the integer that a value stands for; None if it stands for no integer, or needs more than 64 bits.

    >>> whole(7), whole(7.0), whole("7"), whole("7.0"), whole(7.5), whole("stream 7"), whole(1 << 64)
    (7, 7, 7, 7, None, None, None)
    """
    if isinstance(value, str):
        try:
            value = int(value)
        except ValueError:
            try:
                value = float(value)
            except ValueError:
                return None
    if isinstance(value, float):
        if not value.is_integer():
            return None
        value = int(value)
    return value if value is not None and LEAST <= value <= MOST else None


def last_number(value: Scalar) -> int | None:
    """Return the integer that a value stands for, or else the number at the end of its text; None without either.

    >>> last_number(3), last_number("GPU 1"), last_number("[TP00] 4242"), last_number("0x5f8"), last_number("Spans")
    (3, 1, 4242, None, None)
    """
    number = whole(value)
    if number is None and isinstance(value, str):
        match = _LAST_NUMBER.search(value)
        number = int(match[1]) if match else None
    return number


def microseconds(value: Scalar | Decimal) -> Microseconds | None:
    """Return a time as a number; None if it is no number.

    A text becomes a decimal number, which keeps all digits. A float would round times since 1970 to a quarter of a
    microsecond. None also for a text with more than `MOST_TIME_DIGITS` digits before its decimal point.

    >>> microseconds("1603029046213755.123"), microseconds("soon"), microseconds(2.5)
    (Decimal('1603029046213755.123'), None, 2.5)
    """
    if not isinstance(value, str):
        return value
    try:
        time = Decimal(value)
    except InvalidOperation:
        return None
    return time if time.is_finite() and time.adjusted() < MOST_TIME_DIGITS else None


def elapsed(begin: Microseconds, end: Microseconds) -> Microseconds:
    """Return the microseconds between two times. The result is exact if one of them is decimal.

    >>> elapsed(1, 3.5), elapsed(Decimal("1.25"), 3.5)
    (2.5, Decimal('2.25'))
    """
    if isinstance(begin, Decimal) or isinstance(end, Decimal):
        return Decimal(end) - Decimal(begin)
    return end - begin


def nanoseconds(time: Microseconds) -> int:
    """Return a time in microseconds as nanoseconds, rounded to an integer."""
    return time * 1000 if type(time) is int else round(time * 1000)
