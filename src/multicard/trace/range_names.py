"""Names of ranges, cut to what they share: a program can give them millions, such as `aten::copy_, op_id = 991065`."""

import re

# What PyTorch's emit_nvtx and its profiler append to the name of an operator.
SINGLE_CALL = r", (?:seq|op_id|sizes|input_op_ids|trace_id) ?= ?.*"
# A step that carries its number, such as PyTorch's `ProfilerStep#7`.
_STEP = re.compile(r"(?:profiler)?(?:step|iteration|iter)[ _#:-]*\d*", re.IGNORECASE)


def shared_name(name: str) -> str:
    """Name of a range without what tells single calls apart; every kind of numbered step is `step`.

    >>> shared_name("aten::copy_, op_id = 991065"), shared_name("ProfilerStep#7"), shared_name("layer 7")
    ('aten::copy_', 'step', 'layer 7')
    """
    name = re.sub(SINGLE_CALL, "", name, flags=re.DOTALL)
    return "step" if _STEP.fullmatch(name) else name
