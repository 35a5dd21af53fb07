"""Text that users wrote, without places, keys and addresses: a running text, or the arguments of a command."""

import re
from collections.abc import Sequence
from functools import partial

from multicard.core.secrets import NAME_IN_BRACES, REMOVED, arguments_without_secrets, removed, without_secrets

# A path may hold blanks in quotes, behind a backslash, and where the word after a blank has a slash of its own. A slash
# after a word belongs to a ratio or a path below this folder, unless what it begins is somebody's home. URLs have
# `://`.
_OF_PATH = r"""(?:\\.|[^\s"',;:()<>|\[\]{}\\])"""
PATH = re.compile(
    r"""(["'])(?:~[\w.-]*)?/[^"'\n]*\1"""
    r"""|(?:(?:(?<![\w.:/~])|(?<=:)(?!//))(?:~[\w.-]*)?/|/(?:home|Users|root)/)"""
    rf"""{_OF_PATH}+(?: {_OF_PATH}+/{_OF_PATH}*)*"""
    r"""|file://\S+|[A-Za-z]:\\[^\s"',;]*"""
)
FILE_NAME = re.compile(r"(?<=[/\\])[\w.+-]*\w\.[a-z]{1,6}(?=[\"']?$)")
# An argument that is a path, or several, or an option with such a value: to its end, since no shell divides it.
PATH_ARGUMENT = re.compile(
    r"""(?P<option>[-+]{0,2}[A-Za-z][\w./-]*=|-[A-Za-z](?=/))?(?P<quote>["']?)"""
    r"""(?P<paths>(?:file://|(?:~[\w.-]*)?/(?!/)|[A-Za-z]:\\).*?)(?P=quote)""",
    re.DOTALL,
)
BETWEEN_PATHS = re.compile(r"(?<=[,:;])(?=~?/)")  # divides a list of paths
SHELL = re.compile(r"(?:.*/)?(?:(?:ba|da|z|k|fi)?sh|python[\d.]*)")
FORMS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"(\w+://[^\s?]*)\?\S*"), r"\1"),  # what a URL asks for, such as a signature
    (re.compile(r"\b([A-Z][A-Z0-9_]{2,})=(?:\"[^\"]*\"|'[^']*'|\S+)"), rf"\1={REMOVED}"),  # environment variables
    (
        re.compile(r"(?i)([\w-]*(?:token|secret|passw(?:or)?d|api[_-]?key|credentials?))\b[\"']?\s*[=:]\s*\S+"),
        rf"\1={REMOVED}",
    ),
    (re.compile(r"\b[\w.+-]+@[\w-]+(?:\.[\w-]+)*\b|(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?![\w.])"), "address"),
    # Long words of mixed letters and digits are keys more often than words.
    (re.compile(r"\b(?=\w*\d)(?=\w*[a-z])(?=\w*[A-Z])\w{24,}\b|\b(?=\w*[a-f])(?=\w*\d)[0-9a-f]{32,}\b"), REMOVED),
)


def without_places(value: str) -> str:
    """Return running text that a user wrote without addresses and keys, and absolute paths as the name of a file."""
    value = without_secrets(value)
    for form, template in FORMS:
        value = form.sub(partial(_removed_match, template), value)
    return PATH.sub(lambda match: _instead_of_path(match[0]), value)


def _removed_match(template: str, match: re.Match[str]) -> str:
    """Return the replacement of a removed text; `template` may refer to groups of the match."""
    return removed(match[0], match.expand(template))


def argument_without_places(value: str) -> str:
    """Return an argument of a command, or a value, `without_places`: no shell divides it, so nothing in it is quoted.

    >>> argument_without_places("--data=/srv/joe/my secret/x.csv"), argument_without_places("/a b/{n}/c d:/e")
    ('--data=x.csv', 'path{n}:path')
    """
    argument = PATH_ARGUMENT.fullmatch(value)
    if not argument:
        return without_places(value)
    replacements = ""
    for path_and_separator in BETWEEN_PATHS.split(argument["paths"]):
        path = path_and_separator.rstrip(",:;")
        replacements += _instead_of_path(path) + path_and_separator[len(path) :]
    option, quote = argument["option"] or "", argument["quote"]
    return f"{option}{quote}{replacements}{quote}"


def _instead_of_path(path: str) -> str:
    """Return the replacement of a path: the name of the file if it has the form of one; names in braces stay."""
    name = FILE_NAME.search(path)
    folder = path[: name.start()] if name else path
    names = "".join(NAME_IN_BRACES.findall(folder))
    if names:
        return f"path{names}" + (f"/{name[0]}" if name else "")
    return name[0] if name else "path"


def arguments_without_places(arguments: Sequence[str]) -> list[str]:
    """Return arguments of a command without places, addresses and keys; a program for a shell is running text."""
    kept = []
    for position, argument in enumerate(arguments_without_secrets(arguments)):
        before = arguments[:position]
        is_program = before and re.fullmatch(r"-[a-z]*c", before[-1]) and any(map(SHELL.fullmatch, before))
        kept.append(without_places(argument) if is_program else argument_without_places(argument))
    return kept
