"""Text from files, as it may be shown: one function per place where it is shown."""

import re
import reprlib
import string
from collections.abc import Mapping, Sequence

_ESCAPED = r"\`*_[]<>#|&~$"
_MARKDOWN = str.maketrans({character: f"\\{character}" for character in _ESCAPED})


def printable(text: str, longest: int | None = None) -> str:
    r"""Text in one line, with a mark in the place of what cannot be printed, cut to a length between words.

    >>> printable("a\x1b[1m\nb"), printable("abcdef", 4), printable("one two three", 10)
    ('a�[1m b', 'abc…', 'one two …')
    """
    shown = "".join(character if character.isprintable() else " " if character.isspace() else "�" for character in text)
    if longest is None or len(shown) <= longest:
        return shown
    words, _, rest = shown[:longest].rpartition(" ")
    return f"{words} …" if len(words) > len(rest) and len(words) + 2 <= longest else f"{shown[: longest - 1]}…"


def printable_lines(text: str) -> str:
    r"""Text of several lines as a terminal may show it: each `printable`.

    >>> printable_lines("a\x1b[31m\nb\x07")
    'a�[31m\nb�'
    """
    return "\n".join(map(printable, text.split("\n")))


def visible(text: str) -> str:
    r"""Text with a mark in the place of control characters, which HTML may not hold, but for blanks and line ends.

    >>> visible("a\x1b[31m\x07\tb\nc")
    'a�[31m�\tb\nc'
    """
    return _CONTROL.sub("�", text)


_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


def for_csv(text: str) -> str:
    """Text as a cell of CSV that no spreadsheet takes for a formula, by a quote before it (OWASP, "CSV Injection").

    >>> for_csv("=1+1"), for_csv("'-x"), for_csv("it's"), from_csv(for_csv("'-x")), from_csv(for_csv("=1+1"))
    ("'=1+1", "''-x", "it's", "'-x", '=1+1')
    """
    return f"'{text}" if _FORMULA.match(text) else text


def from_csv(text: str) -> str:
    """The inverse of `for_csv`."""
    return text[1:] if text.startswith("'") and _FORMULA.match(text) else text


_FORMULA = re.compile(r"'*[=+@\t\r\n-]")
LONGEST_QUOTED = 120  # characters


class _Quoter(reprlib.Repr):
    """The representation of a value, of which little is made where it is large."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 3
        self.maxstring = self.maxother = LONGEST_QUOTED

    def repr_int(self, value: int, level: int) -> str:
        # Python makes no text of a number of thousands of digits.
        return repr(value) if value.bit_length() < 128 else f"a number of {value.bit_length()} bits"


def quoted(value: object) -> str:
    """A value that was found, as a message quotes it: cut to a readable length before it is made into text.

    >>> quoted("abc"), quoted([1, 2]), quoted(10**5000), len(quoted("x" * 10**6))
    ("'abc'", '[1, 2]', 'a number of 16610 bits', 120)
    >>> quoted([[[["a"] * 9] * 9] * 9] * 9)[:40]
    '[[[[...], [...], [...], [...], [...], [.'
    """
    return printable(_Quoter().repr(value), LONGEST_QUOTED)


def cut_apart(texts: Sequence[str], longest: int) -> list[str]:
    """Texts cut in the middle to a length, so that unequal ones stay unequal.

    Where a cut hides the difference, as between kernels that differ in a template argument, it moves to show that.

    >>> cut_apart(["short", "abcdefghijkl"], 8)
    ['short', 'abcde…kl']
    >>> cut_apart([f"ns::elementwise_kernel<4, ns::{each}Functor<float>, array>(int)" for each in ("Fill", "Add")], 30)
    ['ns::elemen…ns::FillFunctor<fl…', 'ns::elemen…ns::AddFunctor<flo…']
    """
    shown = {text: text if len(text) <= longest else _without_middle(text, longest) for text in texts}
    # Of a group that a round moves the cut of, some may differ from each other only further on.
    for _ in texts:
        for group in _alike(shown):
            differs = _first_difference(group)
            shown |= {text: _around(text, differs, longest) for text in group}
    return [shown[text] for text in texts]


def _alike(shown: Mapping[str, str]) -> list[list[str]]:
    """Groups of texts that are shown alike, of several texts each."""
    groups: dict[str, list[str]] = {}
    for text, cut in shown.items():
        groups.setdefault(cut, []).append(text)
    return [group for group in groups.values() if len(group) > 1]


def _first_difference(texts: Sequence[str]) -> int:
    """Number of characters that unequal texts begin with alike."""
    different = (at for at, characters in enumerate(zip(*texts, strict=False)) if len(set(characters)) > 1)
    return next(different, min(map(len, texts)))


_OF_NAMES = f"{string.ascii_letters}{string.digits}_:"


def _without_middle(text: str, longest: int) -> str:
    """Text cut to a length, two thirds of which are its begin."""
    end = (longest - 1) // 3
    return f"{text[: longest - 1 - end]}…{text[len(text) - end :]}"


def _around(text: str, at: int, longest: int) -> str:
    """Text cut to a length: a third of its begin, and what lies around a place, from where a name begins."""
    if len(text) <= longest:
        return text
    begin = longest // 3
    start = max(begin, len(text[:at].rstrip(_OF_NAMES)))
    # A name so long that it would hide the place is cut, too.
    start = max(start, at - longest // 3)
    left = longest - begin - 1
    rest = text[start:]
    return f"{text[:begin]}…{rest if len(rest) <= left else f'{rest[: left - 1]}…'}"


def counted(number: int, one: str) -> str:
    """A number of things, of which `one` is the word for one.

    >>> counted(1, "run"), counted(2, "run"), counted(3, "CPU process"), counted(2, "batch"), counted(0, "pass")
    ('1 run', '2 runs', '3 CPU processes', '2 batches', '0 passes')
    """
    return f"{number} {plural(number, one)}"


def plural(number: int, one: str) -> str:
    """The word for so many things, without the number."""
    return one if number == 1 else f"{one}{'es' if one.endswith(('s', 'x', 'ch', 'sh')) else 's'}"


def listed(parts: Sequence[str], last: str = "and") -> str:
    """Parts as a list in words, apart by semicolons where there are commas in them.

    >>> listed(["1", "2", "4"]), listed(["a", "b"], "or"), listed(["one"]), listed(["a", "b, or c", "d"], "or")
    ('1, 2 and 4', 'a or b', 'one', 'a; b, or c; or d')
    """
    if len(parts) > 1 and any(", " in each for each in parts):
        return f"{'; '.join(parts[:-1])}; {last} {parts[-1]}"
    return f" {last} ".join(filter(None, (", ".join(parts[:-1]), *parts[-1:])))


def first_of(parts: Sequence[str], most: int) -> str:
    """The first so many parts in words, and how many more there are.

    >>> first_of(["a", "b", "c"], 2), first_of(["a", "b"], 2)
    ('a, b and 1 more', 'a, b')
    """
    more = f" and {len(parts) - most} more" if len(parts) > most else ""
    return ", ".join(parts[:most]) + more


def natural(text: str) -> list[str | int]:
    """Key that sorts by the numbers in texts.

    >>> sorted(["rank10", "rank2"], key=natural)
    ['rank2', 'rank10']
    """
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", text)]


def for_markdown(text: str) -> str:
    r"""Text that Markdown shows literally.

    >>> for_markdown("<b>a_b</b>")
    '\\<b\\>a\\_b\\</b\\>'
    """
    return printable(text).translate(_MARKDOWN)


def code_in_markdown(text: str) -> str:
    r"""Text that Markdown shows literally, but for what stands in backticks, which it shows as code.

    >>> code_in_markdown("set `batch_size: 8`, a_b or `")
    'set `batch_size: 8`, a\\_b or \\`'
    """
    parts = re.split(r"`([^`]+)`", printable(text))
    return "".join(f"`{part}`" if at % 2 else part.translate(_MARKDOWN) for at, part in enumerate(parts))


_LATEX = {
    **{character: f"\\{character}" for character in "&%$#_{}"}, "\\": r"\textbackslash{}", "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}",
    "`": r"\textasciigrave{}", "'": r"\textquotesingle{}", '"': r"\textquotedbl{}", "[": "{[}", "×": r"$\times$",
    "µ": r"$\mu$", "→": r"$\rightarrow$", "−": "$-$", "–": r"\textendash{}", "…": r"\ldots{}",
}  # fmt: skip


def for_latex(text: str) -> str:
    r"""Text that LaTeX shows literally, but for letters beyond those of Latin alphabets.

    >>> print(for_latex(r"50% of {a_b} \input --x → 1"))
    50\% of \{a\_b\} \textbackslash{}input -{}-x $\rightarrow$ 1
    """
    shown = "".join(_LATEX.get(each, each if each < "\u0180" else "?") for each in printable(text))
    return shown.replace("--", "-{}-")


def without_escapes(markdown: str) -> str:
    r"""Markdown as a terminal shows it best: what `for_markdown` escaped as it was.

    >>> without_escapes(r"**a\_b** \\ \*")
    '**a_b** \\ *'
    """
    return re.sub(rf"\\([{re.escape(_ESCAPED)}])", r"\1", markdown)


def without_names(command: str) -> str:
    """A command as a table has it, with dots in the place of names in braces, which each run has a value for.

    >>> without_names("train.py --workers '{workers}' '--batch={batch}' --json '{{}}'")
    "train.py --workers … '--batch=…' --json '{{}}'"
    """
    return re.sub(r"'\{\w+\}'|(?<!\{)\{\w+\}(?!\})", "…", command)


def for_figure(text: str, longest: int = 60) -> str:
    """Text that Matplotlib shows literally: no dollar starts a formula."""
    return printable(text, longest).replace("$", r"\$")


_BARE_GPU = re.compile(r"(?:[A-Z]{1,2}\d{2,4}\b|GeForce|Quadro|RTX|TITAN)")


def gpu_name(name: object) -> str:
    """Name of a GPU as today's drivers give it: those before R470 left out the maker.

    >>> gpu_name("A100-SXM4-40GB"), gpu_name("NVIDIA A100-SXM4-40GB"), gpu_name("Tesla T4")
    ('NVIDIA A100-SXM4-40GB', 'NVIDIA A100-SXM4-40GB', 'Tesla T4')
    """
    return f"NVIDIA {name}" if _BARE_GPU.match(str(name)) else str(name)
