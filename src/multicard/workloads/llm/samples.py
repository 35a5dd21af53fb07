"""What a sample of each kind is: the columns it may come in, and the one form in which it is prepared."""

from collections.abc import Callable, Mapping
from typing import Any

from multicard.experiment.datasets import TextKind

Row = Mapping[str, Any]
Sample = dict[str, Any]

# The roles of messages, as chats name them and as those of ShareGPT do (torchtune reads the same).
ROLES = {"system": "system", "user": "user", "assistant": "assistant", "human": "user", "gpt": "assistant"}
MESSAGE_KEYS = (("role", "content"), ("from", "value"))


class Unfit(ValueError):
    """A row that is not a valid sample; its message is the reason."""


class MissingColumns(Unfit):
    """A row without a column that it needs; probably no row of its set has it."""


def to_sample(kind: TextKind, row: Any) -> Sample:
    """Bring a row into the form of its kind; other columns are dropped.

    The forms: `instruction` (instruction, input, output), `chat` (messages, each with role and content), `summary`
    (dialogue, summary), `grammar` (input, output), `completion` (text), `preference` (chosen, rejected: messages).

    Raises
    ------
    Unfit
        If columns are missing, or hold what they should not.
    """
    if not isinstance(row, Mapping):
        raise Unfit(f"found {_named(row)}, expected an object")
    for columns, convert in FORMS[kind].items():
        if all(column in row for column in columns):
            return convert(row)
    forms = " or ".join(_listed(columns) for columns in FORMS[kind])
    raise MissingColumns(f"found the columns {_listed(list(row))}, expected {forms}")


def characters(sample: Sample) -> int:
    """Characters of all texts of a sample; of a preference, those of both conversations."""
    return sum(
        len(value) if isinstance(value, str) else sum(len(message["content"]) for message in value)
        for value in sample.values()
    )


def _texts(*columns: str) -> Callable[[Row], Sample]:
    return lambda row: {column: _text(row[column], f"column {column}") for column in columns}


def _completion(column: str) -> Callable[[Row], Sample]:
    return lambda row: {"text": _text(row[column], f"column {column}")}


def _chat(column: str) -> Callable[[Row], Sample]:
    return lambda row: {"messages": _messages(row[column], f"column {column}")}


def _instruction(row: Row) -> Sample:
    sample = _texts("instruction", "output")(row)
    # Many instructions need no input.
    given = row["input"] in ("", None)
    return {
        "instruction": sample["instruction"],
        "input": "" if given else _text(row["input"], "column input"),
        "output": sample["output"],
    }


def _preference(chosen: str, rejected: str) -> Callable[[Row], Sample]:
    def convert(row: Row) -> Sample:
        sample = {}
        for name, column in (("chosen", chosen), ("rejected", rejected)):
            value, where = row[column], f"column {column}"
            if isinstance(value, str) and "prompt" in row:
                prompt, answer = _text(row["prompt"], "column prompt"), _text(value, where)
                value = [{"role": "user", "content": prompt}, {"role": "assistant", "content": answer}]
            sample[name] = _messages(value, where, " (or text, beside a column prompt)")
            if sample[name][-1]["role"] != "assistant":
                raise Unfit(f"{where}: the last message is the user's, expected the assistant's")
        if _question(sample["chosen"]) != _question(sample["rejected"]):
            raise Unfit(f"columns {chosen} and {rejected}: found different questions, expected the same first message")
        return sample

    return convert


# By kind: the columns that samples come in, the usual ones first, and what makes a sample of them.
FORMS: dict[TextKind, dict[tuple[str, ...], Callable[[Row], Sample]]] = {
    "instruction": {("instruction", "input", "output"): _instruction},
    "chat": {("messages",): _chat("messages"), ("conversations",): _chat("conversations")},
    "summary": {("dialogue", "summary"): _texts("dialogue", "summary")},
    "grammar": {("input", "output"): _texts("input", "output")},
    "completion": {(column,): _completion(column) for column in ("text", "article", "page")},
    "preference": {
        ("chosen", "rejected"): _preference("chosen", "rejected"),
        ("chosen_conversations", "rejected_conversations"): _preference(
            "chosen_conversations", "rejected_conversations"
        ),
    },
}


def _question(messages: list[dict[str, str]]) -> str:
    return next(message["content"] for message in messages if message["role"] == "user")


def _text(value: Any, where: str) -> str:
    """Check that a value is text, and not blank."""
    if not isinstance(value, str):
        raise Unfit(f"{where}: found {_named(value)}, expected text")
    if not value.strip():
        raise Unfit(f"{where}: empty, expected text")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise Unfit(f"{where}: found half a surrogate pair, expected Unicode text") from None
    return value


def _messages(value: Any, where: str, other: str = "") -> list[dict[str, str]]:
    """Check a conversation: at most one system message, then user and assistant by turns, as torchtune wants it.

    An empty system message, as some published sets have it, is dropped.
    """
    if not isinstance(value, list):
        raise Unfit(f"{where}: found {_named(value)}, expected a list of messages{other}")
    messages: list[dict[str, str]] = []
    for number, message in enumerate(value, 1):
        place = f"{where}, message {number}"
        role, content = _role_and_content(message, place)
        if role == "system" and number == 1:
            if content:
                messages.append({"role": role, "content": _text(content, place)})
            continue
        before = messages[-1]["role"] if messages else None
        expected = "assistant" if before == "user" else "user"
        if role != expected:
            raise Unfit(f"{place}: found the role {role}, expected {expected}")
        messages.append({"role": role, "content": _text(content, place)})
    if all(message["role"] != "assistant" for message in messages):
        raise Unfit(f"{where}: found no message of the assistant, expected one or more")
    return messages


def _role_and_content(message: Any, place: str) -> tuple[str, Any]:
    if not isinstance(message, Mapping):
        raise Unfit(f"{place}: found {_named(message)}, expected an object with role and content")
    for role_key, content_key in MESSAGE_KEYS:
        if role_key in message and content_key in message:
            role = message[role_key]
            if not isinstance(role, str) or role not in ROLES:
                raise Unfit(f"{place}: found the role {str(role)[:40]!r}, expected system, user or assistant")
            return ROLES[role], message[content_key]
    raise Unfit(f"{place}: found the keys {_listed(list(message))}, expected role and content")


def _named(value: Any) -> str:
    """What a value is, in words."""
    kinds = {str: "text", bool: "true or false", list: "a list", dict: "an object", type(None): "nothing"}
    return kinds.get(type(value), "a number" if isinstance(value, int | float) else f"a {type(value).__name__}")


def _listed(names: list[str] | tuple[str, ...]) -> str:
    """Name the first few in one line."""
    shown = [" ".join(str(name).split())[:40] or "''" for name in names[:8]] + ["…"] * (len(names) > 8)
    return ", ".join(shown) or "none"
