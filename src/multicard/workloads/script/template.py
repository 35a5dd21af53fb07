"""The command of a script: text with names in braces, which a run's values take the place of."""

import difflib
import re
from collections.abc import Iterable, Mapping

# One name in braces, an escaped brace, or a brace that is neither.
_PART = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")


def names_in(command: Iterable[str]) -> list[str]:
    """Names in braces, each once, in their order.

    Raises
    ------
    ValueError
        If a brace stands alone.

    >>> names_in(["train.py", "--batch={batch_size}", "--json={{}}", "{batch_size}x{devices}"])
    ['batch_size', 'devices']
    """
    names = []
    for text in command:
        for part in _PART.finditer(text):
            if part[0] in "{}":
                raise ValueError(f"{text!r} has a single {part[0]}; write {2 * part[0]} for a brace")
            if part[1] is not None:
                names.append(part[1])
    return list(dict.fromkeys(names))


def fill(command: Iterable[str], values: Mapping[str, object]) -> list[str]:
    """The command with the values in the places of their names, and escaped braces as braces.

    >>> fill(["--batch={batch_size}", "--json={{}}"], {"batch_size": 32})
    ['--batch=32', '--json={}']
    """

    def filled(part: re.Match[str]) -> str:
        return part[0][0] if part[1] is None else str(values[part[1]])

    return [_PART.sub(filled, text) for text in command]


def command_error(command: Iterable[str], own: Iterable[str], given: Iterable[str]) -> str | None:
    """What is wrong between a command and the user's own parameters, with what to do; None where nothing is.

    Parameters
    ----------
    own
        Names of the user's own parameters.
    given
        Names that always have a value.
    """
    own, given = list(own), list(given)
    try:
        named = names_in(command)
    except ValueError as error:
        return f"command: {error}"
    for name in own:
        if name in given:
            return f"args.{name}: {{{name}}} is given by multicard; choose another name"
    for name in named:
        if name not in (*own, *given):
            close = difflib.get_close_matches(name, [*own, *given], n=1)
            hint = f"did you mean {{{close[0]}}}?" if close else f"add args.{name}, or write {{{{ and }}}} for braces"
            return f"command: {{{name}}} is not under args, nor one of {', '.join(given)} ({hint})"
    for name in own:
        if name not in named:
            return f"args.{name}: the command does not use it; write {{{name}}} where its value belongs"
    return None
