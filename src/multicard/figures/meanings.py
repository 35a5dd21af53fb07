"""One colour for each meaning in all figures, and hatches that distinguish parts of a bar without colour.

A part of a step, of a GPU's time or of the kernels that means the same has the same colour in each figure. Parts that
have no such meaning, and series, get other colours.
"""

import itertools
from collections.abc import Iterable
from typing import NamedTuple

from multicard.figures.style import HATCHES

# The colour of each meaning. Most are of Okabe and Ito's palette, which colour-blind readers can distinguish.
COMPUTE = "#0072B2"
FORWARD = "#56B4E9"  # a part of computing, lighter
OVERLAPPED = "#8C6BB1"  # computing and communicating at once: between the colours of both
COMMUNICATION = "#D55E00"
WAITING = "#F4A582"  # for other ranks: communication in which nothing moves
DATA = "#E69F00"
MEMORY = "#F0E442"  # copies and fills of memory, and the transfer of a batch to the device
OPTIMIZER = "#009E73"
EVALUATION = "#B2DF8A"
GRAPHS = "#88AADD"
LAUNCHING = "#7F7F7F"
ALLOCATING = "#B15928"
LOADING_CODE = "#CAB2D6"
SYNCHRONIZING = "#CC79A7"
HOST = "#C7A76C"  # the host is in no call of the GPU's interface
IDLE_IN_GRAPH = "#A6DBC8"
QUEUED = "#BFBFBF"
STALLS = "#882255"
OTHER = "#E6E6E6"  # unknown, or all that is not shown alone

# Colours of parts without a meaning of their own; none of them is a colour above.
NEUTRAL = ("#332288", "#88CCEE", "#117733", "#999933", "#44AA99", "#AA4499", "#DDCC77", "#661100", "#6699CC", "#CC6677")

# Meanings of classes of kernels and of functions of the CUDA API, by words in their names.
_BY_WORDS = (
    (("communication", "nccl"), COMMUNICATION),
    (("optimizer",), OPTIMIZER),
    (("memcpy", "memset"), MEMORY),
    (("launch",), LAUNCHING),
    (("synchronize", "eventquery"), SYNCHRONIZING),
    (("malloc", "free", "hostalloc"), ALLOCATING),
    (("module", "library"), LOADING_CODE),
)


class Fill(NamedTuple):
    """Colour and hatch of a part of a bar."""

    colour: str
    hatch: str


# Fill of each part of a bar. The parts follow each other in the bar in this order.
Fills = dict[str, Fill]


def fills_of(parts: Iterable[str], rest: str) -> Fills:
    """Return a fill for each part: that of its meaning if a word of its name has one, else one of its own.

    Neighbours have different hatches. `rest`: name of the part that sums all others.

    >>> fills_of(["matrix multiply", "communication", "elementwise"], "other")["communication"].colour
    '#D55E00'
    """
    used: set[str] = set()
    hatches = itertools.cycle(HATCHES)
    fills: Fills = {}
    for part in parts:
        colour = OTHER if part == rest else _colour_of(part)
        # Two parts of the same meaning, such as two calls that synchronize, must still differ.
        if colour is None or colour in used:
            colour = next(neutral for neutral in itertools.cycle(NEUTRAL) if neutral not in used or len(used) > 20)
        used.add(colour)
        fills[part] = Fill(colour, "" if part == rest else next(hatches))
    return fills


def _colour_of(part: str) -> str | None:
    """Return the colour of the meaning that a part's name states; None if it states none."""
    name = part.lower()
    return next((colour for words, colour in _BY_WORDS if any(word in name for word in words)), None)
