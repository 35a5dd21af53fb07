"""The command of a script: text with names in braces, which a run's values take the place of."""

import difflib
import re
from collections.abc import Callable, Iterable, Mapping

from multicard.core.text import quoted

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
                raise ValueError(f"{quoted(text)} has a single {part[0]}; write {2 * part[0]} for a brace")
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


def renamed(command: Iterable[str], name_of: Callable[[str], str]) -> list[str]:
    """The command with other names in braces.

    >>> renamed(["--batch={Batch-Size}", "--json={{}}"], lambda name: name.lower().replace("-", "_"))
    ['--batch={batch_size}', '--json={{}}']
    """

    def with_name(part: re.Match[str]) -> str:
        return part[0] if part[1] is None else f"{{{name_of(part[1])}}}"

    return [_PART.sub(with_name, text) for text in command]


def command_error(
    command: Iterable[str],
    own: Iterable[str],
    given: Iterable[str],
    stated: str = "args.{}",
    to_state: str = "add args.{}",
) -> str | None:
    """What is wrong between a command and the user's own parameters, with what to do; None where nothing is.

    Parameters
    ----------
    own
        Names of the user's own parameters.
    given
        Names that always have a value.
    stated, to_state
        How a parameter of that name is stated, and what to do to state one.
    """
    own, given = list(own), list(given)
    try:
        named = names_in(command)
    except ValueError as error:
        return f"command: {error}"
    for name in own:
        if name in given:
            return f"{stated.format(name)}: multicard gives {{{name}}} its value; choose another name"
    for name in named:
        if name not in (*own, *given):
            close = difflib.get_close_matches(name, [*own, *given], n=1)
            add = f"{to_state.format(name)}, or " if re.fullmatch(r"[A-Za-z][\w-]*", name) else ""
            hint = f"did you mean {{{close[0]}}}?" if close else f"{add}write {{{{ and }}}} for braces"
            return f"command: {{{name}}} is neither your own parameter nor one of {', '.join(given)} ({hint})"
    for name in own:
        if name not in named:
            return f"{stated.format(name)}: the command does not use it; write {{{name}}} where its value belongs"
    return None
