"""Take out of records what names people, machines and places, or lets somebody in.

Words that are known (hosts, users, values of secret environment variables) are replaced wherever they stand, the same
by the same. What cannot be known is found by its form: paths, addresses, assignments, keys. The message of a failure is
what a program printed, which may be anything: only the kind of the error is kept of it.
"""

import contextlib
import getpass
import json
import os
import re
import socket
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from multicard.analysis.evidence import SYNTHETIC
from multicard.core.secrets import SECRET_VARIABLE, TOKEN
from multicard.core.system import SAYING

REMOVED = "removed"
# User names that many machines share name nobody.
NOBODY = {"root", "user", "users", "admin", "nobody", "ubuntu", "debian", "runner", "guest", "home", "shared"}
HOME = re.compile(r"(?:/home|/Users|\\Users)[/\\]+([A-Za-z_][\w.-]*)")
SHORTEST_SECRET = 8

# In quotes a path may hold spaces. A slash after a word belongs to a ratio or a path below this folder, unless what it
# begins is somebody's home; `://` belongs to a URL.
PATH = re.compile(
    r"""(["'])(?:~[\w.-]*)?/[^"'\n]*\1"""
    r"""|(?:(?:(?<![\w.:/~])|(?<=:)(?!//))(?:~[\w.-]*)?/|/(?:home|Users|root)/)[^\s"',;:()<>|\[\]{}]+"""
)
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
UUID = re.compile(r"\b(?:GPU|MIG)-[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4,12}){2,4}\b")  # as good as a serial number
CODE = re.compile(r"[A-Za-z_]+")  # of a reason's fields `code` and `signal`

KEPT = ("run", "parameters")  # checked against each other: the id is made of the parameters
FACTS = ("versions", "hardware", "system")  # numbers that look like addresses are versions there
DIGEST = "sha256"


class Scrubber:
    """Replaces what is known by name, and what is told by its form.

    Parameters
    ----------
    hosts
        Names of machines; they become host-1, host-2 in this order.
    users
        Names of people's accounts; they become `user`.
    secrets
        Texts to remove wherever they stand.
    """

    def __init__(self, hosts: Sequence[str], users: Iterable[str], secrets: Iterable[str] = ()):
        words = {user.lower(): "user" for user in users if len(user) > 1 and user.lower() not in NOBODY}
        for number, host in enumerate(dict.fromkeys(hosts), start=1):
            for name in {host, host.partition(".")[0]}:
                if len(name) > 1 and name.lower() not in ("localhost", SYNTHETIC):  # the mark of synthetic runs stays
                    words.setdefault(name.lower(), f"host-{number}")
        self._words = words
        longest_first = sorted(words, key=len, reverse=True)
        self._gpus: dict[str, str] = {}
        self._word = _any(longest_first, r"(?<![A-Za-z0-9]){}(?![A-Za-z0-9])", re.IGNORECASE)
        self._secret = _any(sorted(secrets, key=len, reverse=True), "{}")

    @classmethod
    def of(cls, records: Sequence[dict[str, Any]]) -> "Scrubber":
        """Gather what is to be replaced from the records of runs and machines, and from this process."""
        hosts = [host["name"] for record in records if (host := record.get("host")) and host.get("name")]
        nodes = [node for record in records for node in record.get("nodes") or []]
        hosts += [name for node in nodes for name in (node.get("name"), (node.get("host") or {}).get("name")) if name]
        for reason in (record.get("reason") for record in records):
            if isinstance(reason, dict):
                hosts += [each["node"] for each in (reason, *(reason.get("unreported") or [])) if each.get("node")]
        users = {os.environ.get(name, "") for name in ("USER", "LOGNAME", "SUDO_USER", "USERNAME")}
        places = [Path.cwd()]
        with contextlib.suppress(KeyError, OSError, RuntimeError):  # an account may have no name and no home
            places.append(Path.home())
            users |= {Path.home().name, getpass.getuser()}
        for record in records:
            users.update(HOME.findall(json.dumps(record, ensure_ascii=False).replace("\\\\", "\\")))
        secrets = [
            value
            for name, value in os.environ.items()
            if SECRET_VARIABLE.search(name) and len(value) >= SHORTEST_SECRET and not value.startswith("/")
        ]
        # A path with a space in it is not told by its form.
        secrets += [str(place) for place in places if " " in str(place)]
        return cls([*hosts, socket.gethostname(), socket.getfqdn()], users, secrets)

    def holds(self, text: str) -> str | None:
        """Give the first name of a person or machine in a text; None where there is none."""
        found = self._word.search(text)
        return found[0] if found else None

    def name(self, text: str) -> str:
        """A name that a program gave, of a kernel for one: known words and paths are replaced, no more."""
        text = self._secret.sub(REMOVED, text)
        text = PATH.sub("path", text) if "/" in text else text
        return self._word.sub(lambda found: self._words[found[0].lower()], text)

    def text(self, text: str) -> str:
        """Free text: known words, paths and all that has the form of an address, an assignment or a key."""
        text = self._secret.sub(REMOVED, text)
        text = UUID.sub(self._gpu, text)
        for form, instead in FORMS:
            text = form.sub(instead, text)
        return self.name(text.partition(SAYING)[0])

    def _gpu(self, uuid: re.Match[str]) -> str:
        """A name for a GPU, by which it can be told from others but not found."""
        return self._gpus.setdefault(uuid[0].lower(), f"gpu-{len(self._gpus) + 1}")

    def reason(self, reason: dict[str, Any] | str | None) -> dict[str, Any] | str | None:
        """Why a run failed: all but the message, of which the kind of the error is kept. An old reason is a message."""
        if reason is None or isinstance(reason, str):
            return self.message(reason)
        kept = {name: reason[name] for name in ("code", "signal") if CODE.fullmatch(str(reason.get(name, "")))}
        message = {"message": self.message(reason["message"])} if "message" in reason else {}
        return self.value(reason) | kept | message

    def message(self, text: str | None) -> str | None:
        """What a program printed, which may be anything: of it only the kind of the error and sizes are kept."""
        known = KNOWN_MESSAGE.match(text or "")
        if known is None:
            return None if text is None else f"text {REMOVED}"
        return known[0] if known[0] == text else f"{known[0]}: text {REMOVED}"

    def record(self, record: dict[str, Any]) -> dict[str, Any]:
        """What run.json may say of a run."""
        scrubbed = self.value(record)
        return scrubbed | {key: record[key] for key in KEPT} | {"reason": self.reason(record.get("reason"))}

    def machine(self, record: dict[str, Any]) -> dict[str, Any]:
        """What the record of a machine's limits may say; of what could not be measured, only the kind of the error."""
        links = record.get("links")
        scrubbed = self.value(record)
        parts = [
            found | {"problem": self.message(part.get("problem"))}
            for found, part in zip(scrubbed["parts"], record["parts"], strict=True)
        ]
        known = {"links": scrubbed["links"] | {"problem": self.message(links.get("problem"))}} if links else {}
        return scrubbed | {"parts": parts} | known

    def value(self, value: Any, scrub: Callable[[str], str] | None = None) -> Any:
        """A value from JSON with every text in it scrubbed, keys included."""
        scrub = scrub or self.text
        match value:
            case str():
                return scrub(value)
            case dict():
                return {
                    scrub(key): entry if key == DIGEST else self.value(entry, self.name if key in FACTS else scrub)
                    for key, entry in value.items()
                }
            case list():
                return [self.value(entry, scrub) for entry in value]
        return value


def _any(words: Sequence[str], around: str, flags: int = 0) -> re.Pattern[str]:
    """Match any of the words; nothing where there are none."""
    escaped = "|".join(re.escape(word) for word in words if word)
    return re.compile(around.format(f"(?:{escaped})"), flags) if escaped else re.compile(r"(?!)")
