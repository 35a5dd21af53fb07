"""Rules that say which texts of a record may go into an archive. A field has its rule in the annotation of its type.

    class Reason:
        signal: Annotated[str | None, Form(r"SIG[A-Z0-9+]{2,9}")]  # "SIGKILL" goes into archives, "my secret" does not

Numbers and booleans always go into an archive. A text does so only as the rule of its field says. A text whose field
has no rule is left out, so that a new field is private until somebody decides otherwise. `multicard.share.allowed`
applies the rules.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Rule:
    """Base of the rules. As a rule of its own it says that the text goes into archives unchanged."""


AS_IT_IS = Rule()


@dataclass(frozen=True)
class Private(Rule):
    """The field is left out of archives, whatever its type is: numbers and booleans, too."""


PRIVATE = Private()


@dataclass(frozen=True, init=False)
class Words(Rule):
    """A text goes into archives if it is one of `words`.

    Any other text is replaced by `otherwise`; None leaves it out.
    """

    words: frozenset[str]
    otherwise: str | None = None

    def __init__(self, *words: str, otherwise: str | None = None):
        object.__setattr__(self, "words", frozenset(words))
        object.__setattr__(self, "otherwise", otherwise)


@dataclass(frozen=True)
class Form(Rule):
    """A text goes into archives if the whole text matches `pattern`, a regular expression.

    Any other text is replaced by `otherwise`; None leaves it out.
    """

    pattern: str
    otherwise: str | None = None

    def allowed(self, text: str) -> str | None:
        """Return the text that goes into an archive in place of `text`; None for no text."""
        return text if re.fullmatch(self.pattern, text) else self.otherwise


@dataclass(frozen=True)
class Beginning(Rule):
    """The beginning of a text goes into archives, as far as it matches `pattern`, a regular expression."""

    pattern: str

    def allowed(self, text: str) -> str | None:
        """Return the beginning of `text` that matches; None if it does not match."""
        match = re.match(self.pattern, text)
        return match[0] if match else None


@dataclass(frozen=True)
class Remark(Rule):
    """The fixed text `remark` goes into archives in place of any text. It says that there was a text."""

    remark: str


@dataclass(frozen=True)
class Numbered(Rule):
    """A name is replaced by its series and a number, such as `host-1`. Equal names of an archive get equal numbers."""

    series: str


@dataclass(frozen=True)
class OwnText(Rule):
    """Text that the user wrote. It goes into archives without paths and addresses, secrets, and names of machines."""


@dataclass(frozen=True)
class ErrorText(Rule):
    """The message of a program. The kind of its error goes into archives, and the fact that there was more text."""


@dataclass(frozen=True)
class ByKey(Rule):
    """The values of a mapping go into archives by the rule for their key in `rules`, or by `otherwise`."""

    rules: Mapping[str, Rule]
    otherwise: Rule


@dataclass(frozen=True)
class Keys:
    """The entries of a mapping go into archives if their keys match `pattern` as a whole.

    A field has this in addition to the rule for its values.
    """

    pattern: str = field(default=r"[a-z][a-z0-9_]{0,31}|GPU|\d{1,3}")


# Names of hardware, which vendors choose: words that begin with a capital or a digit, and a few others.
HARDWARE = Form(
    r"(?:(?:[A-Z0-9(@][\w()./,+-]{0,30}|v\d|with|and|w\d-\w+|i\d-\w+|processor|synthetic|x86_64|aarch64)(?: +|$))+"
)
VERSION = Beginning(r"\d+(?:\.\d+)*(?:(?:a|b|rc|\.?dev|\.?post)\d+)?(?:\+(?:cu\d+|cpu|rocm[\d.]+|g?[0-9a-f]{7,40})\b)?")
SETTING = Form(r"(?i)(?:[-+]?[\d.]+|true|false|yes|no|on|off|info|warn|[,:;=]|[a-z_]+:(?=true|false|\d))+", "set")
VARIABLE_NAMES = Keys(
    r"(?:NCCL|GLOO|OMP|MKL|KMP|TORCH|TORCHINDUCTOR|TRITON|PYTORCH|NVIDIA|CUDA|CUBLAS|CUDNN|UCX|FI)_[A-Z0-9_]{1,60}"
)
TIME = Form(r"\d{4}-\d\d-\d\dT[\d:.]+(?:Z|[+-]\d\d:\d\d)?")
SHA256 = Form(r"[0-9a-f]{64}")
HOST = Numbered("host")
GPU = Numbered("gpu")
