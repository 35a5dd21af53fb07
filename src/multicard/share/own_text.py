"""Remove places (paths), keys and addresses from text that users wrote: running text, or arguments of a command."""

import re
from collections.abc import Sequence
from functools import partial

from multicard.core.secrets import NAME_IN_BRACES, REMOVED, arguments_without_secrets, removed, without_secrets

# An absolute path in running text. It may contain blanks if it is in quotes, if the blank is behind a backslash, or if
# the word after the blank contains a slash, too. A slash directly behind a word does not begin an absolute path, since
# it belongs to a ratio or a relative path; /home/, /Users/ and /root/ always begin one. The slashes of `://` belong to
# a URL. File URLs and Windows paths come last in the pattern.
_OF_PATH = r"""(?:\\.|[^\s"',;:()<>|\[\]{}\\])"""
PATH = re.compile(
    r"""(["'])(?:~[\w.-]*)?/[^"'\n]*\1"""
    r"""|(?:(?:(?<![\w.:/~])|(?<=:)(?!//))(?:~[\w.-]*)?/|/(?:home|Users|root)/)"""
    rf"""{_OF_PATH}+(?: {_OF_PATH}+/{_OF_PATH}*)*"""
    r"""|file://\S+|[A-Za-z]:\\[^\s"',;]*"""
)
FILE_NAME = re.compile(r"(?<=[/\\])[\w.+-]*\w\.[a-z]{1,6}(?=[\"']?$)")
# A whole argument that is one or several absolute paths, or an option with such a value. The paths extend to the end of
# the argument, because no shell divides it at blanks.
PATH_ARGUMENT = re.compile(
    r"""(?P<option>[-+]{0,2}[A-Za-z][\w./-]*=|-[A-Za-z](?=/))?(?P<quote>["']?)"""
    r"""(?P<paths>(?:file://|(?:~[\w.-]*)?/(?!/)|[A-Za-z]:\\).*?)(?P=quote)""",
    re.DOTALL,
)
# Where a list of paths is divided: between a separator and the next path.
BETWEEN_PATHS = re.compile(r"(?<=[,:;])(?=~?/)")
# Programs whose option -c is followed by the text of a program.
SHELL = re.compile(r"(?:.*/)?(?:(?:ba|da|z|k|fi)?sh|python[\d.]*)")
# Forms of private text in running text, and the replacement of each.
FORMS: tuple[tuple[re.Pattern[str], str], ...] = (
    # The query of a URL, which may hold a signature.
    (re.compile(r"(\w+://[^\s?]*)\?\S*"), r"\1"),
    # The values of environment variables.
    (re.compile(r"\b([A-Z][A-Z0-9_]{2,})=(?:\"[^\"]*\"|'[^']*'|\S+)"), rf"\1={REMOVED}"),
    (
        re.compile(r"(?i)([\w-]*(?:token|secret|passw(?:or)?d|api[_-]?key|credentials?))\b[\"']?\s*[=:]\s*\S+"),
        rf"\1={REMOVED}",
    ),
    (re.compile(r"\b[\w.+-]+@[\w-]+(?:\.[\w-]+)*\b|(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?![\w.])"), "address"),
    # Long words of mixed letters and digits, which are keys more often than words.
    (re.compile(r"\b(?=\w*\d)(?=\w*[a-z])(?=\w*[A-Z])\w{24,}\b|\b(?=\w*[a-f])(?=\w*\d)[0-9a-f]{32,}\b"), REMOVED),
)


def without_places(value: str) -> str:
    """Return running text without secrets and addresses, and with only the name of the file of each absolute path."""
    value = without_secrets(value)
    for form, template in FORMS:
        value = form.sub(partial(_removed_match, template), value)
    return PATH.sub(lambda match: _instead_of_path(match[0]), value)


def _removed_match(template: str, match: re.Match[str]) -> str:
    """Return the replacement of a removed text: `template`, and the names in braces that the removed text contains.

    `template` may refer to groups of the match.
    """
    return removed(match[0], match.expand(template))


def argument_without_places(value: str) -> str:
    """Return an argument of a command, or the value of a parameter, without places, keys and addresses.

    A path in it may contain blanks without quotes, because no shell divides the argument.

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
    """Return the replacement of a path: the name of its file, or "path" if its last part does not look like a file's.

    Names in braces stay, because they stand for parameters: "/a/{n}/x.csv" becomes "path{n}/x.csv".
    """
    name = FILE_NAME.search(path)
    folder = path[: name.start()] if name else path
    names = "".join(NAME_IN_BRACES.findall(folder))
    if names:
        return f"path{names}" + (f"/{name[0]}" if name else "")
    return name[0] if name else "path"


def arguments_without_places(arguments: Sequence[str]) -> list[str]:
    """Return arguments of a command without places, addresses and keys.

    The text of a program, such as what follows `bash -c` or `python -c`, counts as running text.
    """
    kept = []
    for position, argument in enumerate(arguments_without_secrets(arguments)):
        before = arguments[:position]
        is_program = before and re.fullmatch(r"-[a-z]*c", before[-1]) and any(map(SHELL.fullmatch, before))
        kept.append(without_places(argument) if is_program else argument_without_places(argument))
    return kept
