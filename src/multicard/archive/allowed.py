"""What leaves in an archive: the fields listed here, each in a form that cannot hold a name, and nothing else.

Nothing is searched for and replaced in these fields, so no word of a user's name can change a kernel class, a phase or
a parameter. Text that users wrote themselves (commands, parameters, questions) leaves without places, keys and
addresses: see `without_places`.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from multicard.analysis.evidence import SYNTHETIC
from multicard.analysis.machine.limits import NAMES
from multicard.analysis.runs.conditions import SLOWDOWNS
from multicard.core.layout import OUTCOMES, PHASES
from multicard.core.reasons import WORDINGS
from multicard.core.secrets import TOKEN
from multicard.profilers import PROFILERS
from multicard.trace.captured_events import SCOPES
from multicard.trace.kernel_classes import CLASSES, COLLECTIVES
from multicard.trace.model import OPERATIONS
from multicard.trace.steps import DEVICE, HOST, STEP

REMOVED = "removed"
UNSAID = "for a reason that archives leave out"
FIELD = re.compile(r"[a-z][a-z0-9_]{0,31}")
Rule = Callable[[Any], Any] | Mapping[str, Any] | list[Any]


def pick(rule: Rule, value: Any) -> Any:
    """What a rule lets through: of an object the listed fields, of a list each entry, of others what a function gives.

    None where the value is of another kind.
    """
    if isinstance(rule, Mapping):
        found = value if isinstance(value, Mapping) else None
        return found and {name: pick(each, found[name]) for name, each in rule.items() if name in found}
    if isinstance(rule, list):
        return [pick(rule[0], each) for each in value] if isinstance(value, list) else None
    return rule(value)


def number(value: Any) -> int | float | bool | None:
    """A number or a truth value."""
    return value if isinstance(value, int | float) else None


def one_of(*words: str) -> Callable[[Any], str | None]:
    """Rule that lets these words through."""
    return lambda value: value if isinstance(value, str) and value in words else None


def begins(pattern: str) -> Callable[[Any], str | None]:
    """Rule that lets through the part of a text, from its beginning, that has a form."""
    form = re.compile(pattern)
    return lambda value: found[0] if isinstance(value, str) and (found := form.match(value)) else None


def text(pattern: str) -> Callable[[Any], str | None]:
    """Rule that lets through text of a form."""
    return begins(rf"(?:{pattern})\Z")


def numbers(value: Any) -> Any:
    """Numbers however nested, and the words of `WORD`; no other text, nor keys that are no names of fields."""

    def known(each: Any) -> bool:
        return not isinstance(each, str) or WORD(each) is not None

    if isinstance(value, Mapping):
        return {name: numbers(each) for name, each in value.items() if FIELD.fullmatch(name) and known(each)}
    if isinstance(value, list):
        return [numbers(each) for each in value if known(each)]
    return value if isinstance(value, str) and WORD(value) else number(value)


def each_value(rule: Rule, names: str = FIELD.pattern) -> Callable[[Any], Any]:
    """Rule of an object whose keys have a form, and whose values follow another rule."""

    def picked(value: Any) -> dict[str, Any] | None:
        found = value if isinstance(value, Mapping) else None
        return found and {name: pick(rule, each) for name, each in found.items() if re.fullmatch(names, name)}

    return picked


def given(words: str) -> Callable[[Any], str | None]:
    """Rule that says that there is something, not what."""
    return lambda value: words if value else None


class Numbered:
    """Rule that gives each name a number, the same by the same: names of machines, GPUs and traces."""

    def __init__(self, kind: str):
        self._kind = kind
        self._numbers: dict[str, str] = {}

    def __call__(self, value: Any) -> str | None:
        """The name that leaves; that something is synthetic stays."""
        if not isinstance(value, str) or not value or value == SYNTHETIC:
            return SYNTHETIC if value == SYNTHETIC else None
        key = value.lower().partition(".")[0] if self._kind == "host" else value.lower()
        found = self._numbers.setdefault(key, f"{self._kind}-{len(self._numbers) + 1}")
        return f"{found} ({SYNTHETIC})" if value.endswith(f"({SYNTHETIC})") else found


WORD = one_of(*SLOWDOWNS, *NAMES, "pinned", "pageable", "fp64", "fp32", "tf32", "bf16", "fp16", "stated", "loader")
TIME = text(r"\d{4}-\d\d-\d\dT[\d:.]+(?:Z|[+-]\d\d:\d\d)?")
SHA256 = text(r"[0-9a-f]{64}")
# Names of hardware are made by vendors: words with a capital or a digit first.
HARDWARE = text(
    rf"(?:(?:[A-Z0-9(@][\w()./,+-]{{0,30}}|v\d|with|and|w\d-\w+|i\d-\w+|processor|{SYNTHETIC}|x86_64|aarch64)(?: +|$))+"
)
VERSION = begins(r"\d+(?:\.\d+)*(?:(?:a|b|rc|\.?dev|\.?post)\d+)?(?:\+(?:cu\d+|cpu|rocm[\d.]+|g?[0-9a-f]{7,40})\b)?")
SYSTEM = begins(r"(?:Linux|macOS|Darwin|Windows)(?:-\d+(?:\.\d+)*)?")
CPUS = text(r"[\d,-]+")

ATTENTION = ("flex_attention", "scaled_dot_product_attention")
PACKAGES = (
    "multicard", "python", "torch", "torchvision", "torchtune", "torchao", "numpy", "cuda", "nccl", "driver", "nsys",
)  # fmt: skip
VARIABLES = (
    r"(?:NCCL|GLOO|OMP|MKL|KMP|TORCH|TORCHINDUCTOR|TRITON|PYTORCH|NVIDIA|CUDA|CUBLAS|CUDNN|UCX|FI)_[A-Z0-9_]{1,60}"
)
SETTINGS = {
    "true", "false", "yes", "no", "on", "off", "none", "auto", "ring", "tree", "collnet", "nvls", "simple", "ll",
    "ll128", "info", "warn", "version", "trace", "lo", "expandable_segments", "max_split_size_mb",
    "garbage_collection_threshold", "granularity", "fine", "compact", "scatter", "close", "spread",
}  # fmt: skip


def setting(value: Any) -> str | None:
    """The value of a variable if it is made of numbers and known words; else that it is set."""
    parts = re.split(r"[,:=; ]", value) if isinstance(value, str) else [REMOVED]
    known = all(part.lower() in SETTINGS or re.fullmatch(r"[-+]?[\d.]*|0x[0-9a-f]+", part) for part in parts)
    return value if known else "set"


SIZE = r"[\d.]+ (?:[KMGT]i?B|bytes)"
# The kind of an error, and what PyTorch's allocator prints of sizes.
KNOWN_MESSAGE = re.compile(
    rf"(?:OutOfMemoryError: )?CUDA out of memory\.(?: Tried to allocate {SIZE}\.)?"
    rf"(?: GPU \d+ has a total capacity of {SIZE}(?: of which {SIZE} is free\.)?)?"
    rf"(?: Process \d+ has {SIZE} memory in use\.)*"
    rf"(?: Including non-PyTorch memory, this process has {SIZE} memory in use\.)?(?: {SIZE} allowed;)?"
    rf"(?: Of the allocated memory {SIZE} is allocated by PyTorch,"
    rf"(?: with {SIZE} allocated in private pools \(e\.g\., CUDA Graphs\),)?"
    rf" and {SIZE} is reserved by PyTorch but unallocated\.)?"
    r"|[A-Z][A-Za-z]{2,40}(?:Error|Exception|Interrupt|Exit)(?=: |$)"
)


def message(value: Any) -> str | None:
    """What a program printed, which may be anything: of it only the kind of the error and sizes are kept."""
    if value is None:
        return None
    known = KNOWN_MESSAGE.match(str(value))
    if known is None:
        return f"text {REMOVED}"
    return known[0] if known[0] == value else f"{known[0]}: text {REMOVED}"


# Of text that users wrote. In quotes a path may hold spaces. A slash after a word belongs to a ratio or a path below
# this folder, unless what it begins is somebody's home; `://` belongs to a URL.
PATH = re.compile(
    r"""(["'])(?:~[\w.-]*)?/[^"'\n]*\1"""
    r"""|(?:(?:(?<![\w.:/~])|(?<=:)(?!//))(?:~[\w.-]*)?/|/(?:home|Users|root)/)[^\s"',;:()<>|\[\]{}]+"""
)
FILE_NAME = re.compile(r"(?<=[/\\])[\w.+-]*\w\.[a-z]{1,6}(?=[\"']?$)")
FORMS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"file://\S+"), "path"),
    (re.compile(r"\b(\w+)://[^\s/@]*@"), r"\1://"),  # name and password in a URL
    (re.compile(r"(\w+://[^\s?]*)\?\S*"), r"\1"),  # what a URL asks for, such as a signature
    (re.compile(r"[A-Za-z]:\\[^\s\"',;]*|\\\\[\w.$-]+\\[^\s\"',;]*"), "path"),
    (re.compile(r"\b([A-Z][A-Z0-9_]{2,})=(?:\"[^\"]*\"|'[^']*'|\S+)"), rf"\1={REMOVED}"),  # environment variables
    (
        re.compile(r"(?i)([\w-]*(?:token|secret|passw(?:or)?d|api[_-]?key|credentials?))\b[\"']?\s*[=:]\s*\S+"),
        rf"\1={REMOVED}",
    ),
    (re.compile(r"(?i)\bbearer\s+\S+"), f"bearer {REMOVED}"),
    (TOKEN, REMOVED),
    (re.compile(r"\b[\w.+-]+@[\w-]+(?:\.[\w-]+)*\b"), "address"),
    (re.compile(r"(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?![\w.])"), "address"),
    (re.compile(r"(?<![\w:])[0-9a-fA-F]{1,4}(?::[0-9a-fA-F]{0,4}){3,7}(?![\w:])"), "address"),
    # Long words of mixed letters and digits are keys more often than words.
    (re.compile(r"\b(?=\w*\d)(?=\w*[a-z])(?=\w*[A-Z])\w{24,}\b|\b(?=\w*[a-f])(?=\w*\d)[0-9a-f]{32,}\b"), REMOVED),
)


def without_places(value: str) -> str:
    """Text that a user wrote: of absolute paths the name of a file, no addresses and no keys."""
    for form, instead in FORMS:
        value = form.sub(instead, value)
    return PATH.sub(lambda found: name[0] if (name := FILE_NAME.search(found[0])) else "path", value)


def same(value: Any) -> Any:
    """What was checked before."""
    return value


class Allowed:
    """What leaves of the records of one archive; machines and GPUs have the same numbers in all of them.

    `records`: those of its runs, whose machines are numbered first.
    """

    def __init__(self, records: Iterable[Mapping[str, Any]] = ()):
        self.hosts = Numbered("host")
        self._gpus = Numbered("gpu")
        nodes = [node for record in records for node in (record.get("host"), *(record.get("nodes") or ()))]
        names = [name for node in nodes if isinstance(node, Mapping) and self.hosts(name := node.get("name"))]
        # A machine called `train` is no reason to change train.py.
        known = [part for name in names for part in {name, name.partition(".")[0]} if not part.isalpha()]
        longest_first = "|".join(map(re.escape, sorted(known, key=len, reverse=True)))
        self._host = re.compile(rf"(?i)(?<![\w.-])(?:{longest_first or '(?!)'})(?![\w-])")
        host = {"name": self.hosts, "system": SYSTEM}
        gpu = {"name": HARDWARE, "memory_bytes": number, "capability": text(r"\d+\.\d+")}
        hardware = {"processor": HARDWARE, "gpus": [gpu]}
        hardware |= dict.fromkeys(("logical_cpus", "usable_cpus", "memory_bytes"), number)
        versions = dict.fromkeys(PACKAGES, VERSION) | {"GPU": HARDWARE}
        files = [{"bytes": number, "sha256": SHA256}]
        place = {"rank": number, "node": self.hosts}
        reason = {
            **place, "code": one_of(*WORDINGS), "signal": text(r"SIG[A-Z0-9+]{2,9}"), "message": message,
            "loss": text(r"[+-]?(?:nan|inf|[\d.]+(?:e[+-]?\d+)?)"), "unreported": [place],
        }  # fmt: skip
        counted = ("exit_code", "step", "time_limit_s", "devices", "gpus", "ranks", "steps", "needed_steps")
        self._reason = reason | dict.fromkeys(counted, number)
        self._rank = {
            "rank": number, "node": number, "pid": number, "gpus": [{"uuid": self._gpus, "name": HARDWARE}],
            "binding": {"cpus": CPUS, "numa_nodes": [number]}, "windows": [numbers], "energy": [numbers],
            "gpu_conditions": [numbers],
            "device_memory_used_bytes": [number], "held_bytes": numbers, "tear_down_problem": given(f"failed {UNSAID}"),
            "compile_limits_hit": [{"limit": text(r"[a-z_]+_limit"), "value": number, "functions": number}],
            "operations": numbers, "ignored_exit": number,
            "observed": {
                "loaders": [{"distinct": number}], "threads": number, "thread_time": numbers, "samples_from": WORD,
            },
        }  # fmt: skip
        missing = one_of("no profiler was used", *(f"the run ended as {outcome}" for outcome in OUTCOMES))
        origin = dict.fromkeys(("dataset", "source", "model", "architecture", "kind"), self.own)
        self._run = {
            # The id is made of the parameters, which are checked.
            "run": same, "outcome": one_of(*OUTCOMES), "reason": self._why, "parameters": same,
            "order": {"group": [same], "seed": number, "block": number, "position": number},
            "started": TIME, "ended": TIME, "wall_time_s": number, "exit_code": number, "ended_at_time_limit": number,
            "profiler": {
                "used": one_of(*PROFILERS, "none"), "why": one_of("as configured"),
                "caveat": given(f"limited {UNSAID}"),
                "trace_missing": lambda value: missing(value) or given(f"missing {UNSAID}")(value),
            },
            "files": [{"name": one_of("steps.csv", "epochs.csv"), "bytes": number, "sha256": SHA256}],
            "variables": each_value(setting, VARIABLES), "conditions": [numbers], "host": host, "hardware": hardware,
            "versions": versions, "steps_per_pass": number, "profiled_window": numbers, "saved": numbers,
            "resumed": numbers, "attention": {"function": one_of(*ATTENTION), "compiled": number},
            "data": origin | {"files": files} | dict.fromkeys(
                ("train_samples", "test_samples", "classes", "tokens_per_sample"), numbers
            ),
            "model": origin | {"parameters": number, "files": files}, "ranks": [self._rank],
            "nodes": [{"name": self.hosts, "host": host, "hardware": hardware, "ranks": [number]}],
            "script": {"file": text(r"[\w.+-]{1,80}\.py"), "sha256": SHA256, "modified": number},
            "folder_changes": {"count": number, "names": [given("a file")]},
            "adopted": {
                "traces": [{"name": self.own, "bytes": number, "sha256": SHA256}], "step_range": self.own,
                "samples_per_step": number, "warmup_steps": number, "steps_from": self.own, "steps": number,
                "traced_devices": number,
            },
        }  # fmt: skip
        row = each_value(numbers)
        part = {"part": one_of("device", "all_reduce"), "rows": [row], "devices": number}
        part |= {"problem": message, "conditions": [numbers], "ranks": [self._rank]}
        self._machine = {
            "device": one_of("cpu", "cuda"), "seconds": number,
            "started": TIME, "ended": TIME, "host": host, "hardware": hardware, "versions": versions,
            "variables": each_value(setting, VARIABLES),
            "parts": [part],
        }  # fmt: skip

    def _why(self, value: Any) -> Any:
        return message(value) if isinstance(value, str) else pick(self._reason, value)

    def own(self, value: Any) -> Any:
        """JSON with text that a user wrote: without places, and machines by their numbers."""
        if isinstance(value, Mapping):
            return {name: self.own(each) for name, each in value.items()}
        if isinstance(value, list | tuple):
            return [self.own(each) for each in value]
        if not isinstance(value, str):
            return value
        return self._host.sub(lambda found: str(self.hosts(found[0])), without_places(value))

    def record(self, record: Mapping[str, Any]) -> dict[str, Any]:
        """What leaves of a run's record, whose parameters were checked."""
        return pick(self._run, record)

    def machine(self, record: Mapping[str, Any]) -> dict[str, Any]:
        """What leaves of the limits of a machine."""
        return pick(self._machine, record)


# Columns of text of the activity tables, but for `report`.
COLUMNS: dict[str, Callable[[Any], str | None]] = {
    "phase": one_of(STEP, *PHASES),
    "api": one_of("runtime", "driver", "backtrace", "other"),
    "function": text(r"cu(?:da)?[A-Z]\w{1,80}"),
    "class": one_of(*CLASSES),
    "operation": one_of(*OPERATIONS),
    "host_memory": one_of("pageable", "pinned"),
    "collective": one_of(*COLLECTIVES.values()),
    "scope": one_of(*SCOPES, STEP),
    "extent": one_of(DEVICE, HOST),
    "share": one_of("host_to_device_copies", "kernel_launches", "synchronizations", "nccl"),
    "of": text(r"time of all (?:memory operations|CUDA API calls|kernels) o[nf] the (?:device|process)"),
    "pool": text(r"torch_(?:allocated|reserved)|pageable|pinned|device|array|managed|(?:device|managed)_static"),
}
