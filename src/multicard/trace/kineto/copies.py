"""The direction of a memory operation, from the name that its profiler gave it.

- `Memcpy HtoD (Pageable -> Device)`: Kineto on CUDA and HIP. `A` is an array, which is memory of the device. `PtoP` is
  a copy between two devices.
- `Memcpy M2D (MEMORY(Unknown) -> DEVICE)`: Kineto on Intel's XPU. `M` is memory that its driver does not know, which is
  the host's; `S` is shared and may be on either side (pti-gpu, pti_view.h).
- `CopyHostToDevice2D`, `FillBuffer`: Kineto on HIP until PyTorch 2.3 (ROCclr, platform/activity.cpp).
- `Memcpy` alone: PyTorch's own recorder of CUPTI, since 2.13. Direction and memory are arguments of the event
  (torch/profiler/_cuspy/trace.py in 2.15), of which `name_from_kinds` makes a name as Kineto's on CUDA.
"""

import re

from multicard.trace.kineto.values import Scalar

_COPY = re.compile(r"\b([HDAPMS])(?:to|2)([HDAPMS])\b|Copy(Host|Device)To(Host|Device)")
_FILL = re.compile(r"memset|fill", re.IGNORECASE)
_SIDES = {"H": "host", "M": "host", "D": "device", "A": "device", "Host": "host", "Device": "device"}


def operation(category: str, name: str) -> str:
    """Return the kind of a memory operation, one of `OPERATIONS` of the model; "other" if its name does not show it.

    >>> names = ["Memcpy HtoA (Pinned -> Array)", "Memcpy S2D (SHARED -> DEVICE)", "CopyDeviceToHost", "FillBuffer"]
    >>> [operation("gpu_memcpy", name) for name in names]
    ['host_to_device', 'other', 'device_to_host', 'memset']
    """
    if _FILL.search(category) or _FILL.search(name):
        return "memset"
    copy = _COPY.search(name)
    if not copy:
        return "other"
    source, target = [side for side in copy.groups() if side]
    if source == target == "P":
        return "peer_to_peer"
    if source not in _SIDES or target not in _SIDES:
        return "other"
    return f"{_SIDES[source]}_to_{_SIDES[target]}"


def name_from_kinds(copy: Scalar, source: Scalar, target: Scalar) -> str:
    """Return the name that Kineto gives a copy of this kind between these kinds of memory.

    The kinds are spelled as PyTorch's own recorder spells them:

    >>> name_from_kinds("HtoD", "pinned", "device")
    'Memcpy HtoD (Pinned -> Device)'
    """
    return f"Memcpy {copy} ({str(source).capitalize()} -> {str(target).capitalize()})"


def host_memory(name: str) -> str | None:
    """Return the kind of host memory of a copy, "pageable" or "pinned"; None if its name states neither.

    It is "pageable" if the name states both.

    >>> host_memory("Memcpy HtoD (Pinned -> Device)"), host_memory("Memcpy DtoD (Device -> Device)")
    ('pinned', None)
    """
    for memory in ("Pageable", "Pinned"):
        if memory in name:
            return memory.lower()
    return None
