"""Words for the faults that pydantic finds: what was expected, and what the user probably meant."""

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Any

from multicard.core.text import counted, quoted

# What was expected, for each of these types of pydantic's faults.
_EXPECTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "string_type": "text",
    "bool_type": "true or false",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
    "dataclass_type": "a mapping",
    "invalid_key": "a name that is text",
}
# What was expected, for types of faults with a limit. In braces are keys of the fault's `ctx`, which has the limit.
_LIMITS = {
    "greater_than": "more than {gt}",
    "greater_than_equal": "{ge} or more",
    "less_than": "less than {lt}",
    "less_than_equal": "{le} or less",
    "too_long": "{max_length} values at most",
    "string_too_long": "{max_length} characters at most",
    "string_pattern_mismatch": "text that matches {pattern}",
}
# The right value for each of these words. difflib does not find it: it would take gpu for a misspelt cpu.
_SYNONYMS = {
    "gpu": "cuda",
    "gpus": "cuda",
    "half": "fp16",
    "float16": "fp16",
    "bfloat16": "bf16",
    "float32": "fp32",
    "float64": "fp64",
    "double": "fp64",
}


def expectation(fault: Mapping[str, Any]) -> str:
    """Return a fault in words: "expected …", or what is wrong, such as "missing".

    `fault`: an entry of `ValidationError.errors()`. A type of fault that has no words here keeps pydantic's message.

    >>> expectation({"type": "greater_than_equal", "ctx": {"ge": 1}}), expectation({"type": "missing"})
    ('expected 1 or more', 'missing')
    >>> expectation({"type": "date_type", "msg": "Input should be a valid date"})
    'input should be a valid date'
    """
    fault_type, context = fault["type"], fault.get("ctx", {})
    if fault_type in _EXPECTED:
        return f"expected {_EXPECTED[fault_type]}"
    if fault_type in _LIMITS:
        return f"expected {_LIMITS[fault_type].format(**context)}"
    match fault_type:
        case "missing":
            return "missing"
        case "extra_forbidden" | "unexpected_keyword_argument":
            return "unknown key"
        case "value_error":
            return str(context["error"])
        case "literal_error" | "union_tag_invalid":
            return f"expected {_one_of(choices_of(fault))}"
        case "too_short":
            return f"expected {counted(context['min_length'], 'value')} or more"
        case "string_too_short":
            return f"expected {counted(context['min_length'], 'character')} or more"
    return fault["msg"][0].lower() + fault["msg"][1:]


def first_fault(error: Any) -> str:
    """Return the first fault of a `ValidationError` in words: its key, what was found there, and what was expected.

    What was found is left out for a fault such as "missing".
    """
    fault = error.errors()[0]
    key = ".".join(map(str, fault["loc"]))
    words = expectation(fault)
    if words.startswith("expected "):
        words = f"found {quoted(fault['input'])}, {words}"
    return f"{key}: {words}" if key else words


def choices_of(fault: Mapping[str, Any]) -> list[str]:
    """Return the values that pydantic would have accepted; `fault`: one whose `ctx` lists them."""
    context = fault["ctx"]
    listed = context.get("expected") or context["expected_tags"]
    return re.findall(r"'([^']*)'", listed) or [listed]


def _one_of(choices: list[str]) -> str:
    return choices[0] if len(choices) == 1 else f"one of {', '.join(choices)}"


def is_empty(value: Any) -> bool:
    """True if a value is text, a list or a mapping with nothing in it."""
    return isinstance(value, (str, list, tuple, dict)) and not value


def meant(word: str, choices: Iterable[str]) -> str | None:
    """Return the choice that a user probably meant by a word: its synonym, else the choice with the closest spelling.

    None if no choice is close enough for difflib, or if the word has 100 characters or more. Case does not count.

    >>> meant("gpu", ["cpu", "cuda"]), meant("sclae", ["scale", "run"]), meant("xyz", ["scale"])
    ('cuda', 'scale', None)
    """
    by_lower_case = {choice.lower(): choice for choice in choices}
    written = word.lower()
    synonym = _SYNONYMS.get(written)
    if synonym in by_lower_case:
        return by_lower_case[synonym]
    # Long words are not searched for, since the time of the search grows with the square of their length.
    close = difflib.get_close_matches(written, by_lower_case, n=1) if len(written) < 100 else []
    return by_lower_case[close[0]] if close else None


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """Return a hint for a message, to follow the word: the choice that was probably meant; "" if there is none.

    >>> did_you_mean("batchsize", ["batch_size", "model"])
    " (did you mean 'batch_size'?)"
    """
    choice = meant(word, choices)
    return f" (did you mean {choice!r}?)" if choice else ""
