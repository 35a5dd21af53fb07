"""Parameters and their values as text. Figures, tables, reports and the console take all such texts from here.

A `setting` is for reading: "batch 32", "pinned memory". Its words are stated beside the parameter, in the class of the
workload's parameters. A `statement` has the name and value as in a configuration file, so that it can be copied into
one: "batch_size: 32".
"""

import math
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from multicard.config.strict_yaml import SWITCH
from multicard.core.text import without_names
from multicard.programs import PROGRAMS
from multicard.runs.parameters import ANY, ARGS_PREFIX, JobParameters, Words, parameter_words


def setting(name: str, value: Any) -> str:
    """Return a parameter with its value for a person to read.

    `value`: as the parameter has it, or as a table has it ("True" for True, 32.0 for 32, None or NaN for null).

    >>> setting("batch_size", 32.0), setting("pin_memory", "True"), setting("num_workers", 1), setting("seed", 7)
    ('batch 32', 'pinned memory', '1 worker', 'seed 7')
    >>> setting("compile", False), setting("steps_per_epoch", None), setting("args.amp", True)
    ('no compile', 'full epochs', 'amp')
    """
    text = _text(value)
    if name == "command":
        return without_names(text)
    words = _words().get(name)
    if isinstance(words, str):
        return words.format(text)
    if words is not None:
        return words.get(text, words.get(ANY, "{}")).format(text)
    if name.startswith(ARGS_PREFIX):
        shown_name = name.removeprefix(ARGS_PREFIX)
        # The text "True" is no flag here, because it may be a value that the user wrote.
        is_flag = isinstance(_plain(value), bool)
    else:
        shown_name = name.replace("_", " ")
        is_flag = text in ("True", "False")
    if is_flag:
        return shown_name if text == "True" else f"no {shown_name}"
    return f"{shown_name} {text}"


def value_words(name: str, value: Any) -> str:
    """Return a value for a person to read where the name of its parameter is shown, too, as in the column of a table.

    Empty for None and NaN, unless the parameter has words for null.

    >>> value_words("layout", "nhwc"), value_words("batch_size", 32.0), value_words("strategy", None)
    ('NHWC', '32', '')
    """
    text = _text(value)
    words = _words().get(name)
    if isinstance(words, dict) and ANY not in words:
        return words.get(text, text)
    return text


def statement(name: str, value: Any) -> str:
    """Return a parameter with its value as a configuration file states it; a user's own without the prefix `args.`.

    >>> statement("pin_memory", True), statement("args.lr", 0.1), statement("steps_per_epoch", None)
    ('pin_memory: true', 'lr: 0.1', 'steps_per_epoch: null')
    """
    return f"{name.removeprefix(ARGS_PREFIX)}: {stated_value(value)}"


def statements(parameters: Mapping[str, Any], names: Iterable[str]) -> str:
    """Return the parameters `names` with their values as a configuration file states them, joined by commas.

    A name that is not in `parameters` has the value null.
    """
    return ", ".join(statement(name, parameters.get(name)) for name in names)


def stated_value(value: Any) -> str:
    """Return a value as a configuration file states it.

    Text that YAML 1.1 reads as a truth value is quoted, because a configuration file with it unquoted is refused.

    >>> stated_value(None), stated_value(False), stated_value(32), stated_value("on")
    ('null', 'false', '32', '"on"')
    """
    if value is None:
        return "null"
    if isinstance(value, str) and SWITCH.fullmatch(value):
        return f'"{value}"'
    return str(value).lower() if isinstance(value, bool) else str(value)


def _text(value: Any) -> str:
    """Return a value as text: a whole float without its decimals, empty text for None and NaN."""
    value = _plain(value)
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


def _plain(value: Any) -> Any:
    """Return a number or boolean of NumPy as one of Python; other values as they are."""
    return value.item() if hasattr(value, "item") else value


@cache
def _words() -> dict[str, Words]:
    """Return the words of the parameters of all programs, by name. A name has the same words in each program."""
    words: dict[str, Words] = {}
    for program in PROGRAMS.values():
        model: type[JobParameters] = program.parameters
        words |= parameter_words(model)
    return words
