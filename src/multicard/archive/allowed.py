"""What leaves in an archive: numbers, and text in the forms listed here, which cannot hold a name; nothing else.

Nothing is searched for and replaced in these, so no word of a user's name can change a kernel class, a phase or a
parameter. Text that users wrote themselves (commands, parameters, questions) leaves without places, keys and
addresses: see `own_text`.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from multicard.analysis.evidence import SYNTHETIC
from multicard.analysis.machine.limits import NAMES
from multicard.analysis.runs.conditions import SLOWDOWNS
from multicard.archive.own_text import argument_without_places, arguments_without_places, without_places
from multicard.core.layout import OUTCOMES, PHASES
from multicard.core.reasons import WORDINGS
from multicard.core.secrets import REMOVED, is_secret_argument, secret_parameters
from multicard.profilers import PROFILERS
from multicard.runs.parameters import ABLATIONS
from multicard.trace.captured_events import SCOPES
from multicard.trace.host import FIRST_LAUNCH
from multicard.trace.host_collectives import BARRIER
from multicard.trace.idle import ELSEWHERE, NAMED
from multicard.trace.kernel_classes import CLASSES, COLLECTIVES
from multicard.trace.model import OPERATIONS
from multicard.trace.rank_matching import CLOCK, DURATION
from multicard.trace.steps import DEVICE, HOST, STEP

COMMAND = "command"  # the key of a command, or under `vary` of several
PROSE = ("", "question")  # keys of running text
UNSAID = "for a reason that archives leave out"
Rule = Callable[[Any], Any]


def one_of(*words: str) -> Rule:
    """Rule that lets these words through."""
    return lambda value: value if value in words else None


def text(pattern: str) -> Rule:
    """Rule that lets through text of a form."""
    form = re.compile(pattern)
    return lambda value: value if form.fullmatch(value) else None


def begins(pattern: str) -> Rule:
    """Rule that lets through the part of a text, from its beginning, that has a form."""
    form = re.compile(pattern)
    return lambda value: found[0] if (found := form.match(value)) else None


def given(words: str) -> Rule:
    """Rule that says that there is something, not what."""
    return lambda value: words if value else None


class Numbered:
    """Rule that gives each name a number, the same by the same: names of machines, GPUs and traces."""

    def __init__(self, kind: str):
        self._kind = kind
        self._numbers: dict[str, str] = {}

    def __call__(self, value: Any) -> str | None:
        """The name that leaves; that something is synthetic stays."""
        if not value or value == SYNTHETIC:
            return value or None
        key = value.lower().partition(".")[0] if self._kind == "host" else value.lower()
        found = self._numbers.setdefault(key, f"{self._kind}-{len(self._numbers) + 1}")
        return f"{found} ({SYNTHETIC})" if value.endswith(f"({SYNTHETIC})") else found


# Names of hardware are made by vendors: words with a capital or a digit first.
HARDWARE = text(
    rf"(?:(?:[A-Z0-9(@][\w()./,+-]{{0,30}}|v\d|with|and|w\d-\w+|i\d-\w+|processor|{SYNTHETIC}|x86_64|aarch64)(?: +|$))+"
)
VERSION = begins(r"\d+(?:\.\d+)*(?:(?:a|b|rc|\.?dev|\.?post)\d+)?(?:\+(?:cu\d+|cpu|rocm[\d.]+|g?[0-9a-f]{7,40})\b)?")
CPUS = text(r"[\d,-]+")
WORD = one_of(*SLOWDOWNS, *NAMES, "fp64", "fp32", "tf32", "bf16", "fp16", "stated", "loader")
setting = text(r"(?i)(?:[-+]?[\d.]+|true|false|yes|no|on|off|info|warn|[,:;=]|[a-z_]+:(?=true|false|\d))+")
# What a program printed may be anything: of it the kind of the error is kept, and what PyTorch wanted to allocate.
ERROR = begins(
    r"(?:OutOfMemoryError: )?CUDA out of memory\.(?: Tried to allocate [\d.]+ (?:[KMGT]i?B|bytes)\.)?"
    r"|[A-Z][A-Za-z]{2,40}(?:Error|Exception|Interrupt|Exit)(?=: |$)"
)


def message(value: str) -> str:
    """What a program printed: the kind of the error, and that there was more."""
    known = ERROR(value)
    return f"text {REMOVED}" if known is None else known if known == value else f"{known}: text {REMOVED}"


# Keys of run.json and of the limits of a machine that leave. In them numbers do, and text by the rules of `Allowed`.
RECORD = (
    "run", "outcome", "reason", "parameters", "order", "started", "ended", "wall_time_s", "exit_code",
    "ended_at_time_limit", "profiler", "files", "variables", "conditions", "host", "hardware", "versions",
    "steps_per_pass", "profiled_window", "resumed", "data", "model", "ranks", "nodes", "script", "adopted",
)  # fmt: skip
MACHINE = ("device", "seconds", "started", "ended", "host", "hardware", "versions", "variables", "parts")
KEY = re.compile(r"[a-z][a-z0-9_]{0,31}|GPU|\d{1,3}")
VARIABLE = re.compile(
    r"(?:NCCL|GLOO|OMP|MKL|KMP|TORCH|TORCHINDUCTOR|TRITON|PYTORCH|NVIDIA|CUDA|CUBLAS|CUDNN|UCX|FI)_[A-Z0-9_]{1,60}"
)


def _commands(value: Any, name: str = "") -> Iterator[Sequence[str]]:
    """Yield the commands that stand anywhere in JSON."""
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from _commands(each, key)
    elif isinstance(value, list | tuple) and name == COMMAND:
        if all(isinstance(each, str) for each in value):
            yield value
        for each in value:
            yield from _commands(each, name)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _commands(each)


class Allowed:
    """What leaves of the records of one archive; machines and GPUs have the same numbers in all of them.

    `records`: those of its runs, whose machines are numbered first.
    """

    def __init__(self, records: Iterable[Mapping[str, Any]] = ()):
        self.hosts = Numbered("host")
        nodes = [node for record in records for node in (record.get("host"), *(record.get("nodes") or ()))]
        names = [name for node in nodes if isinstance(node, Mapping) and self.hosts(name := node.get("name"))]
        # A machine called `train` is no reason to change train.py.
        known = [part for name in names for part in {name, name.partition(".")[0]} if not part.isalpha()]
        longest_first = "|".join(map(re.escape, sorted(known, key=len, reverse=True)))
        self._host = re.compile(rf"(?i)(?<![\w.-])(?:{longest_first or '(?!)'})(?![\w-])")
        time = text(r"\d{4}-\d\d-\d\dT[\d:.]+(?:Z|[+-]\d\d:\d\d)?")
        of_inputs = (
            f"{of}.{key}" for of in ("data", "model") for key in ("dataset", "source", "model", "architecture", "kind")
        )
        # Rules of text by the key that it stands under, or by the key above that too (`above.key`, `above.` for any).
        self._rules: dict[str, Rule] = dict.fromkeys(of_inputs, self.own) | {
            ".run": str, "order.group": str, "outcome": one_of(*OUTCOMES), "started": time, "ended": time,
            "code": one_of(*WORDINGS), "node": self.hosts, "signal": text(r"SIG[A-Z0-9+]{2,9}"), "message": message,
            "reason": message, "problem": message, "loss": text(r"[+-]?(?:nan|inf|[\d.]+(?:e[+-]?\d+)?)"),
            "used": one_of(*PROFILERS, "none"), "why": one_of("as configured"), "caveat": given(f"limited {UNSAID}"),
            "trace_missing": lambda value: missing(value) or f"missing {UNSAID}",
            "steps_by": one_of("optimizer", "marks", "backward passes"),
            "files.name": one_of("steps.csv", "epochs.csv"), "traces.name": self.own, "steps_from": self.own,
            "sha256": text(r"[0-9a-f]{64}"),
            "host.name": self.hosts, "nodes.name": self.hosts,
            "machine_digest": text(r"[0-9a-f]{32}"),
            "system": begins(r"(?:Linux|macOS|Darwin|Windows)(?:-\d+(?:\.\d+)*)?"),
            "processor": HARDWARE, "gpus.name": HARDWARE, "versions.GPU": HARDWARE, "capability": text(r"\d+\.\d+"),
            "versions.": VERSION, "variables.": lambda value: setting(value) or "set", "uuid": Numbered("gpu"),
            "cpus": CPUS, "script.file": text(r"[\w.+-]{1,80}\.py"),
            "limit": text(r"[a-z_]+_limit"), "device": one_of("cpu", "cuda"),
            "part": one_of("device", "all_reduce", *ABLATIONS),
        }  # fmt: skip
        missing = one_of("no profiler was used", *(f"the run ended as {outcome}" for outcome in OUTCOMES))

    def own(self, value: Any) -> Any:
        """JSON with text that a user wrote: without places and secrets, and machines by their numbers."""
        secrets = {name for command in _commands(value) for name in secret_parameters(command)}
        return self._own(value, "", secrets)

    def _own(self, value: Any, name: str, secrets: Collection[str]) -> Any:
        """Return the same of what stands under a name; `secrets`: names of parameters that are secrets."""
        if isinstance(value, Mapping):
            return {key: self._own(each, key, secrets) for key, each in value.items()}
        if isinstance(value, list | tuple):
            if name == COMMAND and all(isinstance(each, str) for each in value):
                return [self._without_hosts(each) for each in arguments_without_places(value)]
            return [self._own(each, name, secrets) for each in value]
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            return value
        if name in secrets or is_secret_argument(name, str(value)):
            return REMOVED
        if not isinstance(value, str):
            return value
        return self._without_hosts(without_places(value) if name in PROSE else argument_without_places(value))

    def _without_hosts(self, text: str) -> str:
        return self._host.sub(lambda found: str(self.hosts(found[0])), text)

    def record(self, record: Mapping[str, Any]) -> dict[str, Any]:
        """What leaves of a run's record, whose parameters were checked and may leave."""
        kept = {name: self._picked(record[name], name) for name in RECORD if name in record}
        return kept | ({"parameters": record["parameters"]} if "parameters" in record else {})

    def machine(self, record: Mapping[str, Any]) -> dict[str, Any]:
        """What leaves of the limits of a machine."""
        return {name: self._picked(record[name], name) for name in MACHINE if name in record}

    def _picked(self, value: Any, key: str, above: str = "") -> Any:
        """What leaves of a value under a key; text that does not leave is not there at all."""
        if isinstance(value, Mapping):
            form = VARIABLE if key == "variables" else KEY
            kept = {name: self._picked(each, name, key) for name, each in value.items() if form.fullmatch(name)}
            return {name: new for name, new in kept.items() if new is not None or not isinstance(value[name], str)}
        if isinstance(value, list):
            kept = [self._picked(each, key, above) for each in value]
            return [new for new, old in zip(kept, value, strict=True) if new is not None or not isinstance(old, str)]
        if not isinstance(value, str):
            return value if value is None or isinstance(value, int | float) else None
        rules = self._rules
        return (rules.get(f"{above}.{key}") or rules.get(key) or rules.get(f"{above}.") or WORD)(value)


# Columns of text of the activity tables, but for `report`.
# Functions of the operating system in which a host waits or works while it starts nothing on its GPU.
_SYSTEM_CALLS = (
    "accept", "clock_nanosleep", "connect", "epoll_wait", "fopen", "fread", "fsync", "futex", "fwrite", "ioctl", "mmap",
    "munmap", "nanosleep", "open", "open64", "poll", "ppoll", "pread64", "pthread_cond_timedwait", "pthread_cond_wait",
    "pthread_join", "pthread_mutex_lock", "read", "recv", "recvmsg", "select", "sem_timedwait", "sem_wait", "send",
    "sendmsg", "sleep", "usleep", "wait4", "waitpid", "write", "writev",
)  # fmt: skip
_FUNCTION = r"(?:cu(?:da)?|hip)[A-Z]\w{1,80}"
COLUMNS: dict[str, Rule] = {
    "phase": one_of(STEP, *PHASES),
    "api": one_of("runtime", "driver", "backtrace", "other"),
    "function": text(_FUNCTION),
    **dict.fromkeys((f"{cause}_call" for cause in NAMED), text(f"{_FUNCTION}|{FIRST_LAUNCH}")),
    f"{ELSEWHERE}_call": text(rf"MPI_[A-Z][a-z_]{{1,40}}|{'|'.join(_SYSTEM_CALLS)}"),
    "class": one_of(*CLASSES),
    "operation": one_of(*OPERATIONS),
    "host_memory": one_of("pageable", "pinned"),
    "collective": one_of(*COLLECTIVES.values(), BARRIER),
    # Communicators and ranks are numbers; a process group that a user named is left out.
    "group": text(r"0x[0-9a-f]{1,16}|(?:process(?:es)? )?\d{1,10}(?:, \d{1,10})*"),
    "by": one_of(CLOCK, DURATION),
    "scope": one_of(*SCOPES, STEP),
    "extent": one_of(DEVICE, HOST),
    "share": one_of("host_to_device_copies", "kernel_launches", "synchronizations", "nccl"),
    "of": text(r"time of all (?:memory operations|CUDA API calls|kernels) o[nf] the (?:device|process)"),
}
