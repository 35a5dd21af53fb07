"""Select what leaves in an archive: numbers, and text in the forms listed here, which cannot hold a name.

A text of such a form leaves unchanged: names are not searched for and replaced in it, so a user's name cannot change a
kernel class or a phase. Other text does not leave, except text that users wrote themselves (commands, parameters,
questions): paths, keys, addresses and names of machines are removed from it (`own_text`, `Allowed.own`).
"""

import dataclasses
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar, get_type_hints

from pydantic import BaseModel

from multicard.core.layout import PHASES
from multicard.core.secrets import REMOVED, is_secret_argument, secret_parameters
from multicard.core.sharing import (
    AS_IT_IS,
    PRIVATE,
    Beginning,
    ByKey,
    ErrorText,
    Form,
    Keys,
    Numbered,
    OwnText,
    Remark,
    Rule,
    Words,
)
from multicard.runs.environment import SYNTHETIC
from multicard.runs.record import RunRecord
from multicard.share.own_text import argument_without_places, arguments_without_places, without_places
from multicard.trace.captured_events import SCOPES
from multicard.trace.code_loading import FIRST_LAUNCH
from multicard.trace.fp32_products import Arithmetic
from multicard.trace.host_collectives import BARRIER
from multicard.trace.idle import ELSEWHERE, NAMED
from multicard.trace.kernel_classes import CLASSES, COLLECTIVES
from multicard.trace.matched_calls import CLOCK, DURATION
from multicard.trace.model import OPERATIONS
from multicard.trace.steps import DEVICE, HOST, STEP

# Key of a command, which is a list of arguments; under `vary` the key of a list of commands.
COMMAND = "command"
# Keys of running text. The empty key stands for a value that is itself a text, and so has no key.
PROSE = ("", "question")
UNSAID = "for a reason that archives leave out"
# Returns what leaves of a text; None if nothing does.
TextRule = Callable[[Any], Any]

# What leaves of a program's message, at its beginning: the kind of the error, and how much PyTorch tried to allocate.
KIND_OF_ERROR = re.compile(
    r"(?:OutOfMemoryError: )?CUDA out of memory\.(?: Tried to allocate [\d.]+ (?:[KMGT]i?B|bytes)\.)?"
    r"|[A-Z][A-Za-z]{2,40}(?:Error|Exception|Interrupt|Exit)(?=: |$)"
)


def one_of(*words: str) -> TextRule:
    """Return a rule by which a text leaves if it is one of these words."""
    return lambda value: value if value in words else None


def text(pattern: str) -> TextRule:
    """Return a rule by which a text leaves if the whole of it matches a regular expression."""
    form = re.compile(pattern)
    return lambda value: value if form.fullmatch(value) else None


def given(words: str) -> TextRule:
    """Return a rule by which `words` leave in place of any text that is not empty: there is one, but not which."""
    return lambda value: words if value else None


def error_text(message: str) -> str:
    """Return what leaves of a program's message: the kind of the error, and that there was more.

    >>> error_text("FileNotFoundError: /data/secret"), error_text("segfault in alice's code")
    ('FileNotFoundError: text removed', 'text removed')
    """
    error_kind = KIND_OF_ERROR.match(message)
    if error_kind is None:
        return f"text {REMOVED}"
    return message if error_kind[0] == message else f"{error_kind[0]}: text {REMOVED}"


class NumberedNames:
    """Replaces names of machines, GPUs or traces by numbered ones, such as `host-1`; equal names by the same one.

    Upper and lower case are the same. In the series "host", only the part of the name before the first dot counts.
    """

    def __init__(self, series: str):
        self._series = series
        self._numbers: dict[str, str] = {}

    def __call__(self, name: str | None) -> str | None:
        """Return the numbered name; None for an empty one.

        The word `SYNTHETIC` itself is returned unchanged. It also stays as the ending "(…)" of a longer name.
        """
        if not name or name == SYNTHETIC:
            return name or None
        key = name.lower().partition(".")[0] if self._series == "host" else name.lower()
        numbered = self._numbers.setdefault(key, f"{self._series}-{len(self._numbers) + 1}")
        return f"{numbered} ({SYNTHETIC})" if name.endswith(f"({SYNTHETIC})") else numbered


def _commands(value: Any, name: str = "") -> Iterator[Sequence[str]]:
    """Yield the commands in a JSON value: each list of texts that is under the key `COMMAND`, at any depth.

    `name`: the key of the value, if it has one.
    """
    if isinstance(value, Mapping):
        for key, entry in value.items():
            yield from _commands(entry, key)
    elif isinstance(value, list | tuple) and name == COMMAND:
        if all(isinstance(entry, str) for entry in value):
            yield value
        for entry in value:
            yield from _commands(entry, name)
    elif isinstance(value, list | tuple):
        for entry in value:
            yield from _commands(entry)


Shared = TypeVar("Shared", bound=BaseModel)


class Allowed:
    """Selects what leaves of the records of one archive. Machines and GPUs have the same numbers in all of them.

    `records`: the records of the archive's runs. Their machines get the first numbers.
    """

    def __init__(self, records: Iterable[RunRecord] = ()):
        self.hosts = NumberedNames("host")
        self._numbered = {"host": self.hosts, "gpu": NumberedNames("gpu")}
        names = [name for record in records for name in _machine_names(record)]
        for name in names:
            self.hosts(name)
        # The name of a machine is not replaced in text if it consists of letters only: for a machine called `train`,
        # the text train.py would change.
        recognizable = {part for name in names for part in (name, name.partition(".")[0]) if not part.isalpha()}
        longest_first = "|".join(map(re.escape, sorted(recognizable, key=len, reverse=True)))
        self._host = re.compile(rf"(?i)(?<![\w.-])(?:{longest_first or '(?!)'})(?![\w-])")

    def own(self, value: Any) -> Any:
        """Return a JSON value that a user wrote, without paths, addresses and secrets, and with numbered machines."""
        secrets = {name for command in _commands(value) for name in secret_parameters(command)}
        return self._own(value, "", secrets)

    def _own(self, value: Any, name: str, secrets: Collection[str]) -> Any:
        """Return what `own` returns, for a value under the key `name`; `secrets`: names of secret parameters."""
        if isinstance(value, Mapping):
            return {key: self._own(entry, key, secrets) for key, entry in value.items()}
        if isinstance(value, list | tuple):
            if name == COMMAND and all(isinstance(entry, str) for entry in value):
                return [self._without_hosts(argument) for argument in arguments_without_places(value)]
            return [self._own(entry, name, secrets) for entry in value]
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            return value
        if name in secrets or is_secret_argument(name, str(value)):
            return REMOVED
        if not isinstance(value, str):
            return value
        return self._without_hosts(without_places(value) if name in PROSE else argument_without_places(value))

    def _without_hosts(self, text: str) -> str:
        return self._host.sub(lambda match: str(self.hosts(match[0])), text)

    def record(self, record: Shared) -> Shared:
        """Return a copy of a record with only what leaves of its fields, by the rules beside them (`core.sharing`).

        The parameters of a run leave unchanged: `pack` has removed private text from them before.
        """
        leaving = {}
        for name, field in type(record).model_fields.items():
            if name in record.model_fields_set:
                value, is_kept = self._leaving(getattr(record, name), field.metadata)
                if is_kept:
                    leaving[name] = value
        return type(record).model_construct(set(leaving), **leaving)

    def _leaving(self, value: Any, rules: Sequence[object]) -> tuple[Any, bool]:
        """Return what leaves of a value by the rules of its field, and False if nothing leaves.

        None, numbers and booleans leave. A list or mapping leaves too, without the entries of which nothing leaves.
        """
        if PRIVATE in rules:
            return None, False
        if AS_IT_IS in rules or value is None or isinstance(value, bool | int | float):
            return value, True
        if isinstance(value, str):
            text = self._text(value, next((rule for rule in rules if isinstance(rule, Rule)), None))
            return text, text is not None
        if isinstance(value, BaseModel):
            return self.record(value), True
        if isinstance(value, Mapping):
            return self._entries(value, rules), True
        if isinstance(value, list | tuple):
            entries = [self._leaving(entry, rules) for entry in value]
            kept = [entry for entry, is_kept in entries if is_kept]
            # A list stays a list, because pydantic warns if it writes a record with a tuple in the place of a list.
            return (kept if isinstance(value, list) else tuple(kept)), True
        return self._fields(value), True

    def _entries(self, values: Mapping[str, Any], rules: Sequence[object]) -> dict[str, object]:
        """Return the entries of a mapping that leave: those whose key matches `Keys`, and whose value leaves.

        The rule for a value is that of `ByKey` for its key; without a `ByKey`, the rules of the field.
        """
        keys = next((rule for rule in rules if isinstance(rule, Keys)), Keys())
        by_key = next((rule for rule in rules if isinstance(rule, ByKey)), None)
        leaving = {}
        for key, value in values.items():
            rule_of_value = rules if by_key is None else [by_key.rules.get(key, by_key.otherwise)]
            entry, is_kept = self._leaving(value, rule_of_value)
            if is_kept and re.fullmatch(keys.pattern, key):
                leaving[key] = entry
        return leaving

    def _fields(self, value: Any) -> Any:
        """Return a copy of a dataclass with what leaves of its fields, and with the defaults of all other fields."""
        hints = get_type_hints(type(value), include_extras=True)
        leaving = {}
        for field in dataclasses.fields(value):
            rules = getattr(hints[field.name], "__metadata__", ())
            entry, is_kept = self._leaving(getattr(value, field.name), rules)
            if is_kept:
                leaving[field.name] = entry
        return type(value)(**leaving)

    def _text(self, value: str, rule: Rule | None) -> str | None:
        """Return what leaves of a text by its rule; None if nothing leaves. Without a rule nothing leaves."""
        match rule:
            case Words():
                return value if value in rule.words else rule.otherwise
            case Form() | Beginning():
                return rule.allowed(value)
            case Remark():
                return rule.remark if value else None
            case Numbered():
                return self._numbered[rule.series](value)
            case OwnText():
                return self.own(value)
            case ErrorText():
                return error_text(value)
        return None


def _machine_names(record: RunRecord) -> list[str]:
    """Return the names of the machines of a run that its record states."""
    nodes = record.nodes or ()
    names = [record.host and record.host.name, *(node.name for node in nodes)]
    return [name for name in names if name]


# Functions of the operating system in which a host waits or works while it starts nothing on its GPU.
_SYSTEM_CALLS = (
    "accept", "clock_nanosleep", "connect", "epoll_wait", "fopen", "fread", "fsync", "futex", "fwrite", "ioctl", "mmap",
    "munmap", "nanosleep", "open", "open64", "poll", "ppoll", "pread64", "pthread_cond_timedwait", "pthread_cond_wait",
    "pthread_join", "pthread_mutex_lock", "read", "recv", "recvmsg", "select", "sem_timedwait", "sem_wait", "send",
    "sendmsg", "sleep", "usleep", "wait4", "waitpid", "write", "writev",
)  # fmt: skip
# Functions of CUDA and HIP.
_FUNCTION = r"(?:cu(?:da)?|hip)[A-Z]\w{1,80}"
# The rule for each text column of the activity tables, except `report`.
COLUMNS: dict[str, TextRule] = {
    "phase": one_of(STEP, *PHASES),
    "api": one_of("runtime", "driver", "backtrace", "other"),
    "function": text(_FUNCTION),
    **dict.fromkeys((f"{cause}_call" for cause in NAMED), text(f"{_FUNCTION}|{FIRST_LAUNCH}")),
    f"{ELSEWHERE}_call": text(rf"MPI_[A-Z][a-z_]{{1,40}}|{'|'.join(_SYSTEM_CALLS)}"),
    "class": one_of(*CLASSES),
    "arithmetic": one_of(*Arithmetic),
    "kernel": given(""),
    "operation": one_of(*OPERATIONS),
    "host_memory": one_of("pageable", "pinned"),
    "collective": one_of(*COLLECTIVES.values(), BARRIER),
    # Numbers of communicators, ranks and processes leave. The name that a user gave to a process group does not.
    "group": text(r"0x[0-9a-f]{1,16}|(?:process(?:es)? )?\d{1,10}(?:, \d{1,10})*"),
    "by": one_of(CLOCK, DURATION),
    "scope": one_of(*SCOPES, STEP),
    "extent": one_of(DEVICE, HOST),
    "share": one_of("host_to_device_copies", "kernel_launches", "synchronizations", "nccl"),
    "of": text(r"time of all (?:memory operations|CUDA API calls|kernels) o[nf] the (?:device|process)"),
}
