"""The ranges of a capture by process and name, as candidates for its steps."""

import re
from collections.abc import Mapping
from itertools import pairwise

import numpy as np

from multicard.trace.events import Events, Owner
from multicard.trace.model import Integers, Steps, shared_name
from multicard.trace.steps import LONG_AGO, ROUNDING_NS

# Names of ranges that may be steps; compared with the whole name that `unnumbered` returns. `run_training_batch` is the
# name that Lightning uses.
LIKE_STEP = re.compile(
    r"(?:train(?:ing)?[ _-]?)?(?:step|iteration|iter|batch)|run_training_batch|step\[…\]|execute…", re.IGNORECASE
)
# Beginning of the names of ranges that PyTorch writes around the steps of its optimizers (torch/optim/optimizer.py,
# profile_hook_step).
OPTIMIZER_STEP = re.compile(r"Optimizer\.step#")

# Inference engines put the contents of a step into the name of its range: vLLM writes
# `execute_32_context_0(…)_generation_32(…)`, and SGLang `step[DECODE bs=32]`.
_VLLM_STEP = re.compile(r"execute_(?:\d+_)?(?:context|new)_\d.*", re.DOTALL)
_SGLANG_STEP = re.compile(r"step\[[^\[\]]*\]")
_NUMBER = re.compile(r"[ _#:-]*\d+$")

# The ranges of each process by the name that `unnumbered` returns. A range inside another one of that name is left out.
Ranges = Mapping[Owner, Mapping[str, Steps]]


def unnumbered(name: str) -> str:
    """Return the name of a range without the text that distinguishes single steps.

    >>> [unnumbered(name) for name in ("batch 7", "step[DECODE bs=32]", "execute_context_1(512)_generation_31(31)")]
    ['batch', 'step[…]', 'execute…']
    """
    if _VLLM_STEP.fullmatch(name):
        return "execute…"
    if _SGLANG_STEP.fullmatch(name):
        return "step[…]"
    return _NUMBER.sub("", shared_name(name)) or name


def named_ranges(ranges: Events | None, stated: str | None) -> Ranges:
    """Return the ranges of each process by name, as `Ranges` describes.

    The `threads` of ranges are listed only if `_may_be_step` holds for their name; they are empty for all others.

    `ranges`: with process, name, thread, start and duration; None if none were recorded. `stated`: the name of the
    ranges that the user has stated to be steps, or None.
    """
    if ranges is None:
        return {}
    groups = ranges.group_fields("process", "name", "thread")
    codes_of_name: dict[tuple[Owner, str], list[int]] = {}
    for code, (trace, process, name, _) in enumerate(groups):
        key = ((trace, process), unnumbered(name))
        codes_of_name.setdefault(key, []).append(code)

    # In the order of their codes, the ranges of one group lie side by side: from one of `edges` to the next.
    order = np.argsort(ranges.code, kind="stable")
    codes = ranges.code[order]
    starts = ranges.number("start", order)
    ends = ranges.ends(order)
    edges = np.searchsorted(codes, np.arange(len(groups) + 1)).tolist()
    positions_of_code = [np.arange(first, last) for first, last in pairwise(edges)]

    by_process: dict[Owner, dict[str, Steps]] = {}
    for (owner, name), codes_with_name in codes_of_name.items():
        positions = np.concatenate([positions_of_code[code] for code in codes_with_name])
        outermost, outermost_starts = _outermost(positions, starts, ends)
        threads: list[int | None] = []
        # There may be millions of other ranges, such as those of operators, so their threads are not listed.
        if _may_be_step(name, stated):
            for code in codes[outermost].tolist():
                _, _, _, thread = groups[code]
                threads.append(thread)
        steps = Steps(outermost_starts, ends[outermost], threads=threads)
        by_process.setdefault(owner, {})[name] = steps
    return by_process


def _outermost(positions: Integers, starts: Integers, ends: Integers) -> tuple[Integers, Integers]:
    """Return the positions of the ranges that lie inside no other of the given ranges, and the starts of these ranges.

    Both arrays are in order of time. Times are rounded, so a range may seem to begin up to `ROUNDING_NS` before the
    range before it ends. The start that is returned for such a range is the end of the range before. A range that
    overlaps with one before it by more than that is left out, even if it ends later.

    In the example the range from 2 to 5 µs lies inside the first range. The range from 9.5 to 20 µs follows the first
    one, which ends at 10 µs:

    >>> starts, ends = np.array([0, 2_000, 9_500]), np.array([10_000, 5_000, 20_000])
    >>> outermost, outermost_starts = _outermost(np.array([0, 1, 2]), starts, ends)
    >>> outermost.tolist(), outermost_starts.tolist()
    ([0, 2], [0, 10000])
    """
    # If ranges begin together, the longest comes first, because it contains the others.
    ordered = positions[np.lexsort((-ends[positions], starts[positions]))]
    ordered_starts = starts[ordered]
    ordered_ends = ends[ordered]
    latest_end_before = np.append(LONG_AGO, np.maximum.accumulate(ordered_ends)[:-1])
    follows = latest_end_before <= ordered_starts
    touches = latest_end_before <= ordered_starts + ROUNDING_NS
    outlasts = latest_end_before < ordered_ends
    is_outermost = follows | (touches & outlasts)
    outermost_starts = np.maximum(ordered_starts, latest_end_before)
    return ordered[is_outermost], outermost_starts[is_outermost]


def _may_be_step(name: str, stated: str | None) -> bool:
    """Return True if an `unnumbered` name is the stated one, that of an optimizer step, or like that of a step."""
    if stated and name == unnumbered(stated):
        return True
    return LIKE_STEP.fullmatch(name) is not None or OPTIMIZER_STEP.match(name) is not None
