"""Rules by which the texts of a record may leave in an archive; a field states its rule beside its type.

    class Reason:
        signal: Annotated[str | None, Form(r"SIG[A-Z0-9+]{2,9}")]  # "SIGKILL" leaves, "my secret" does not

Numbers and booleans always leave. A text leaves by the rule of its field only, and not at all where there is none, so
that a new field of text is private until somebody decides otherwise. `multicard.archive.allowed` applies the rules.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Rule:
    """Base of the rules; used as it is, the text leaves unchanged."""


AS_IT_IS = Rule()


@dataclass(frozen=True)
class Private(Rule):
    """The whole field stays, whatever its type."""


PRIVATE = Private()


@dataclass(frozen=True, init=False)
class Words(Rule):
    """A text leaves if it is one of these words; another one is replaced by `otherwise`, if that is given."""

    words: frozenset[str]
    otherwise: str | None = None

    def __init__(self, *words: str, otherwise: str | None = None):
        object.__setattr__(self, "words", frozenset(words))
        object.__setattr__(self, "otherwise", otherwise)


@dataclass(frozen=True)
class Form(Rule):
    """A text leaves if the whole of it has a form, a regular expression; else it is replaced by `otherwise`."""

    pattern: str
    otherwise: str | None = None

    def allowed(self, text: str) -> str | None:
        """Return what leaves of a text; None where nothing does."""
        return text if re.fullmatch(self.pattern, text) else self.otherwise


@dataclass(frozen=True)
class Beginning(Rule):
    """Of a text the part leaves, from its beginning, that has a form, a regular expression."""

    pattern: str

    def allowed(self, text: str) -> str | None:
        """Return what leaves of a text; None where nothing does."""
        match = re.match(self.pattern, text)
        return match[0] if match else None


@dataclass(frozen=True)
class Remark(Rule):
    """In place of any text a fixed one leaves, which says that there was one."""

    remark: str


@dataclass(frozen=True)
class Numbered(Rule):
    """A name leaves as a number that it has in the whole archive, such as `host-1`."""

    series: str


@dataclass(frozen=True)
class OwnText(Rule):
    """Text that the user wrote leaves without places, secrets and names of machines."""


@dataclass(frozen=True)
class ErrorText(Rule):
    """Of what a program printed the kind of the error leaves, and that there was more."""


@dataclass(frozen=True)
class ByKey(Rule):
    """Values of a mapping leave by a rule for their key, or else by another one."""

    rules: Mapping[str, Rule]
    otherwise: Rule


@dataclass(frozen=True)
class Keys:
    """Of a mapping those entries leave whose keys have a form; stands beside the rule for the values."""

    pattern: str = field(default=r"[a-z][a-z0-9_]{0,31}|GPU|\d{1,3}")


# Names of hardware are made by vendors: words with a capital or a digit first.
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
