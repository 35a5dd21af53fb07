"""Make text from files safe to show in each medium, such as a terminal or HTML; and word counts and lists."""

import re
import reprlib
import string
import textwrap
from collections.abc import Mapping, Sequence

_ESCAPED = r"\`*_[]<>#|&~$"
_MARKDOWN = str.maketrans({character: f"\\{character}" for character in _ESCAPED})


def printable(text: str, longest: int | None = None) -> str:
    r"""Return text in one line, with � for characters that cannot be printed, cut to `longest` characters.

    The cut is between two words, or within a word if that shows much more of the text. `longest`: None for no limit.

    >>> printable("a\x1b[1m\nb"), printable("abcdef", 4), printable("one two three", 10)
    ('a�[1m b', 'abc…', 'one two …')
    """
    shown = text if text.isprintable() else "".join(map(_printable_character, text))
    if longest is None or len(shown) <= longest:
        return shown
    words, _, cut_word = shown[:longest].rpartition(" ")
    # If the last word is long, it is cut and not left out, since little would be shown without it.
    shows_most_words = len(words) > len(cut_word)
    has_space_for_sign = len(words) + len(" …") <= longest
    if shows_most_words and has_space_for_sign:
        return f"{words} …"
    return f"{shown[: longest - 1]}…"


def _printable_character(character: str) -> str:
    if character.isprintable():
        return character
    return " " if character.isspace() else "�"


def printable_lines(text: str) -> str:
    r"""Return text with its line ends, with each line made `printable`.

    >>> printable_lines("a\x1b[31m\nb\x07")
    'a�[31m\nb�'
    """
    return "\n".join(map(printable, text.split("\n")))


def visible(text: str) -> str:
    r"""Return text with � in place of control characters, which HTML must not contain. Tabs and line ends stay.

    >>> visible("a\x1b[31m\x07\tb\nc")
    'a�[31m�\tb\nc'
    """
    return _CONTROL.sub("�", text)


_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


def for_csv(text: str) -> str:
    """Return text as a cell of CSV that no spreadsheet reads as a formula: such text gets a quote before it.

    Text that begins with quotes, and then like a formula, gets one more quote, so that `from_csv` can restore it. Other
    text stays as it is. See OWASP, "CSV Injection".

    >>> for_csv("=1+1"), for_csv("'-x"), for_csv("it's"), from_csv(for_csv("'-x")), from_csv(for_csv("=1+1"))
    ("'=1+1", "''-x", "it's", "'-x", '=1+1')
    """
    return f"'{text}" if _FORMULA.match(text) else text


def from_csv(text: str) -> str:
    """Return the text from which `for_csv` made this cell."""
    return text[1:] if text.startswith("'") and _FORMULA.match(text) else text


_FORMULA = re.compile(r"'*[=+@\t\r\n-]")
LONGEST_QUOTED = 120  # characters of a quoted value at most


class _Quoter(reprlib.Repr):
    """Makes text of values, of large values only in part, because the text of the whole value could fill the memory."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 3
        self.maxstring = self.maxother = LONGEST_QUOTED

    def repr_int(self, value: int, level: int) -> str:
        # Python raises an error for the text of a number with thousands of digits.
        return repr(value) if value.bit_length() < 128 else f"a number of {value.bit_length()} bits"


def quoted(value: object) -> str:
    """Return a value as text for a message. A large value is cut before it is made into text.

    >>> quoted("abc"), quoted([1, 2]), quoted(10**5000), len(quoted("x" * 10**6))
    ("'abc'", '[1, 2]', 'a number of 16610 bits', 120)
    >>> quoted([[[["a"] * 9] * 9] * 9] * 9)[:40]
    '[[[[...], [...], [...], [...], [...], [.'
    """
    return printable(_Quoter().repr(value), LONGEST_QUOTED)


def cut_apart(texts: Sequence[str], longest: int) -> list[str]:
    """Return texts cut in the middle to at most `longest` characters, so that unequal texts stay unequal.

    If a cut hides the difference of two texts, such as of kernels with different template arguments, another place is
    cut, so that the difference shows.

    >>> cut_apart(["short", "abcdefghijkl"], 8)
    ['short', 'abcde…kl']
    >>> cut_apart([f"ns::elementwise_kernel<4, ns::{name}Functor<float>, array>(int)" for name in ("Fill", "Add")], 30)
    ['ns::elemen…ns::FillFunctor<fl…', 'ns::elemen…ns::AddFunctor<flo…']
    """
    cut: dict[str, str] = {}
    for text in texts:
        cut[text] = text if len(text) <= longest else _without_middle(text, longest)
    # After a round, some texts of a group may still be equal, because they differ only after the place that is shown.
    for _ in texts:
        for group in _cut_alike(cut):
            difference = _first_difference(group)
            for text in group:
                cut[text] = _around(text, difference, longest)
    return [cut[text] for text in texts]


def _cut_alike(cut: Mapping[str, str]) -> list[list[str]]:
    """Return the groups of texts that are equal when cut; `cut`: the cut form of each text."""
    texts_by_cut_form: dict[str, list[str]] = {}
    for text, cut_form in cut.items():
        texts_by_cut_form.setdefault(cut_form, []).append(text)
    return [texts for texts in texts_by_cut_form.values() if len(texts) > 1]


def _first_difference(texts: Sequence[str]) -> int:
    """Return the index of the first character in which texts differ. The texts must not all be equal."""
    for index, characters in enumerate(zip(*texts, strict=False)):
        if len(set(characters)) > 1:
            return index
    # The texts do not differ within the length of the shortest one, so they differ at its end.
    return min(map(len, texts))


_NAME_CHARACTERS = f"{string.ascii_letters}{string.digits}_:"


def _without_middle(text: str, longest: int) -> str:
    """Return text cut to `longest` characters: about two thirds from its beginning, "…", and a third from its end."""
    end_length = (longest - 1) // 3
    beginning = text[: longest - 1 - end_length]
    return f"{beginning}…{text[len(text) - end_length :]}"


def _around(text: str, index: int, longest: int) -> str:
    """Return text cut to `longest` characters so that the character at `index` shows.

    A third is the beginning of the text. After "…" follows the text from the name that contains the character; if that
    name is long, from a place within it. The rest is cut.
    """
    if len(text) <= longest:
        return text
    beginning_length = longest // 3
    name_start = len(text[:index].rstrip(_NAME_CHARACTERS))
    # `index - longest // 3` counts if the name is long: shown from its start, it would hide the character.
    start = max(beginning_length, name_start, index - longest // 3)
    context = text[start:]
    available = longest - beginning_length - 1
    if len(context) > available:
        context = f"{context[: available - 1]}…"
    return f"{text[:beginning_length]}…{context}"


def counted(number: int, singular: str) -> str:
    """Return a number of things in words; `singular`: the word for one of them.

    >>> counted(1, "run"), counted(2, "run"), counted(3, "CPU process"), counted(2, "batch"), counted(0, "pass")
    ('1 run', '2 runs', '3 CPU processes', '2 batches', '0 passes')
    """
    return f"{number} {plural(number, singular)}"


def plural(number: int, singular: str) -> str:
    """Return the word for `number` things, without the number; `singular`: the word for one of them."""
    if number == 1:
        return singular
    return f"{singular}es" if singular.endswith(("s", "x", "ch", "sh")) else f"{singular}s"


def listed(parts: Sequence[str], last: str = "and") -> str:
    """Return parts as a list in words, separated by semicolons if a part has commas.

    >>> listed(["1", "2", "4"]), listed(["a", "b"], "or"), listed(["one"]), listed(["a", "b, or c", "d"], "or")
    ('1, 2 and 4', 'a or b', 'one', 'a; b, or c; or d')
    """
    if len(parts) < 2:
        return "".join(parts)
    *first_parts, last_part = parts
    has_commas = any(", " in part for part in parts)
    if has_commas:
        return f"{'; '.join(first_parts)}; {last} {last_part}"
    return f"{', '.join(first_parts)} {last} {last_part}"


def first_of(parts: Sequence[str], most: int) -> str:
    """Return the first `most` parts as a list in words, and the number of other parts if there are more.

    >>> first_of(["a", "b", "c"], 2), first_of(["a", "b"], 2)
    ('a, b and 1 more', 'a, b')
    """
    shown = ", ".join(parts[:most])
    if len(parts) <= most:
        return shown
    return f"{shown} and {len(parts) - most} more"


def natural(text: str) -> list[str | int]:
    """Return a sort key for texts with numbers in them, which are compared as numbers and not digit by digit.

    >>> sorted(["rank10", "rank2"], key=natural)
    ['rank2', 'rank10']
    """
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", text)]


def for_markdown(text: str) -> str:
    r"""Return text that Markdown shows literally.

    >>> for_markdown("<b>a_b</b>")
    '\\<b\\>a\\_b\\</b\\>'
    """
    return printable(text).translate(_MARKDOWN)


def code_in_markdown(text: str) -> str:
    r"""Return text that Markdown shows literally, except for parts in backticks, which it shows as code.

    >>> code_in_markdown("set `batch_size: 8`, a_b or `")
    'set `batch_size: 8`, a\\_b or \\`'
    """
    # A pattern with a group splits the text into text (even indices) and matches of the group (odd indices).
    parts = re.split(r"`([^`]+)`", printable(text))
    markdown = ""
    for index, part in enumerate(parts):
        is_code = index % 2 == 1
        markdown += f"`{part}`" if is_code else part.translate(_MARKDOWN)
    return markdown


def without_escapes(markdown: str) -> str:
    r"""Return Markdown for a terminal: without the backslashes that `for_markdown` adds.

    >>> without_escapes(r"**a\_b** \\ \*")
    '**a_b** \\ *'
    """
    return re.sub(rf"\\([{re.escape(_ESCAPED)}])", r"\1", markdown)


def without_names(command: str) -> str:
    """Return a command for a table, with … in place of names in braces, since their values differ from run to run.

    >>> without_names("train.py --workers '{workers}' '--batch={batch}' --json '{{}}'")
    "train.py --workers … '--batch=…' --json '{{}}'"
    """
    return re.sub(r"'\{\w+\}'|(?<!\{)\{\w+\}(?!\})", "…", command)


def for_figure(text: str, longest: int = 60) -> str:
    """Return text that Matplotlib shows literally, with escaped dollar signs, which would begin a formula.

    The text is cut to `longest` characters before.
    """
    return printable(text, longest).replace("$", r"\$")


_BARE_GPU = re.compile(r"(?:[A-Z]{1,2}\d{2,4}\b|GeForce|Quadro|RTX|TITAN)")


def gpu_name(name: object) -> str:
    """Return the name of a GPU as drivers since R470 state it. Older drivers leave out "NVIDIA".

    >>> gpu_name("A100-SXM4-40GB"), gpu_name("NVIDIA A100-SXM4-40GB"), gpu_name("Tesla T4")
    ('NVIDIA A100-SXM4-40GB', 'NVIDIA A100-SXM4-40GB', 'Tesla T4')
    """
    return f"NVIDIA {name}" if _BARE_GPU.match(str(name)) else str(name)


def folded(text: str, width: int) -> str:
    """Return text broken between words into lines of at most `width` characters; all but the first are indented.

    A word that is longer, such as a path, stays whole, and so does a command of multicard at the end: it moves to a
    line of its own, so that it can be copied.

    >>> print(folded("next, for what to try: multicard recommend 'my results'", 40))
    next, for what to try:
      multicard recommend 'my results'
    >>> print(folded("about a minute left; run 2 of 4", 16))
    about a minute
      left; run 2 of
      4
    """
    if len(text) <= width:
        return text
    ends_with_command = re.fullmatch(r"(.*?:) ((?:multicard|sed -i) .*)", text)
    words, command = ends_with_command.groups() if ends_with_command else (text, None)
    # Indentation in front is kept, as of an answer below its question.
    margin = text[: len(text) - len(text.lstrip())]
    lines = textwrap.wrap(
        words,
        width,
        subsequent_indent=f"{margin}  ",
        break_long_words=False,
        break_on_hyphens=False,
    )
    if command is not None:
        lines.append(f"{margin}  {command}")
    return "\n".join(lines)
