"""The command of a user: the program that it runs, and names in braces, which are replaced by a run's values."""

import difflib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from multicard.core.text import quoted

# Names in braces whose values multicard gives to every command.
GIVEN = ("devices", "devices_per_node", "nodes", "repeat", "seed", "run_dir")
# An escaped brace, a name in braces (group 1), or a brace that is neither.
_BRACES = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")


def program(command: Sequence[str]) -> str:
    """Return the program that a command runs.

    That is the module if the command begins with `-m`, else the first word that ends in `.py`, else the first word. A
    word with a blank does not count as a script, because it is a line for a shell that only ends in a script's name.

    >>> program(["bash", "-c", "exec python train.py"]), program(["wrap", "train.py"]), program(["-m", "pkg.train"])
    ('bash', 'train.py', 'pkg.train')
    """
    if command[0] == "-m" and len(command) > 1:
        return command[1]
    scripts = (word for word in command if word.endswith(".py") and not re.search(r"\s", word))
    return next(scripts, command[0])


def names_in(command: Iterable[str]) -> list[str]:
    """Return the names in braces, each once, in their order.

    Raises
    ------
    ValueError
        If there is a brace without its counterpart.

    >>> names_in(["train.py", "--batch={batch_size}", "--json={{}}", "{batch_size}x{devices}"])
    ['batch_size', 'devices']
    """
    names = []
    for text in command:
        for match in _BRACES.finditer(text):
            whole, name = match[0], match[1]
            if whole in "{}":
                raise ValueError(f"{quoted(text)} has a single {whole}; write {2 * whole} for a brace")
            if name is not None:
                names.append(name)
    return list(dict.fromkeys(names))


def fill(command: Iterable[str], values: Mapping[str, object]) -> list[str]:
    """Return the command with values in place of their names, and escaped braces as braces.

    >>> fill(["--batch={batch_size}", "--json={{}}"], {"batch_size": 32})
    ['--batch=32', '--json={}']
    """

    def value_of(match: re.Match[str]) -> str:
        whole, name = match[0], match[1]
        return whole[0] if name is None else str(values[name])

    return [_BRACES.sub(value_of, text) for text in command]


def renamed(command: Iterable[str], name_of: Callable[[str], str]) -> list[str]:
    """Return the command with each name in braces replaced by `name_of` that name.

    >>> renamed(["--batch={Batch-Size}", "--json={{}}"], lambda name: name.lower().replace("-", "_"))
    ['--batch={batch_size}', '--json={{}}']
    """

    def with_name(match: re.Match[str]) -> str:
        whole, name = match[0], match[1]
        return whole if name is None else f"{{{name_of(name)}}}"

    return [_BRACES.sub(with_name, text) for text in command]


def command_error(
    command: Iterable[str],
    parameters: Iterable[str],
    given: Iterable[str],
    stated: str = "args.{}",
    to_state: str = "add args.{}",
) -> str | None:
    """Return why a command and the user's own parameters do not fit each other, and what to do; None if they fit.

    They fit if each name in braces has a value, and each parameter is named in the command.

    Parameters
    ----------
    parameters
        Names of the user's own parameters.
    given
        Names whose values multicard gives; a user's own parameter must not have such a name.
    stated, to_state
        Formats of the message, filled with a parameter's name: how it is stated, and what to do to state it.
    """
    parameters = list(parameters)
    given = list(given)
    try:
        used = names_in(command)
    except ValueError as error:
        return f"command: {error}"
    for name in parameters:
        if name in given:
            return f"{stated.format(name)}: multicard gives {{{name}}} its value; choose another name"
    for name in used:
        if name not in (*parameters, *given):
            hint = _hint(name, [*parameters, *given], to_state)
            return f"command: {{{name}}} is neither your own parameter nor one of {', '.join(given)} ({hint})"
    for name in parameters:
        if name not in used:
            return f"{stated.format(name)}: the command does not use it; write {{{name}}} where its value belongs"
    return None


def _hint(unknown: str, names: list[str], to_state: str) -> str:
    """Return what to do about an unknown name in braces. `names`: the known ones; `to_state`: see `command_error`."""
    close = difflib.get_close_matches(unknown, names, n=1)
    if close:
        return f"did you mean {{{close[0]}}}?"
    can_be_parameter = re.fullmatch(r"[A-Za-z][\w-]*", unknown) is not None
    add = f"{to_state.format(unknown)}, or " if can_be_parameter else ""
    return f"{add}write {{{{ and }}}} for braces"
