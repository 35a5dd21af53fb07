"""What a memory operation does, from the names that profilers give it.

| name | written by |
|---|---|
| `Memcpy HtoD (Pageable -> Device)` | Kineto on CUDA and HIP; arrays (`A`) are memory of the device |
| `Memcpy M2D (MEMORY(Unknown) -> DEVICE)` | Kineto on Intel's XPU: `M` is memory that its driver does not know, of the \
host, `S` is shared and may be on either side |
| `CopyHostToDevice2D`, `FillBuffer` | Kineto on HIP until PyTorch 2.3 (ROCclr, platform/activity.cpp) |
"""

import re

_COPY = re.compile(r"\b([HDAPMS])(?:to|2)([HDAPMS])\b|Copy(Host|Device)To(Host|Device)")
_FILL = re.compile(r"memset|fill", re.IGNORECASE)
_SIDES = {"H": "host", "M": "host", "D": "device", "A": "device", "Host": "host", "Device": "device"}


def operation(category: str, name: str) -> str:
    """Return the kind of a memory operation, one of `OPERATIONS` of the model.

    >>> operation("gpu_memcpy", "Memcpy HtoA (Pinned -> Array)"), operation("gpu_memcpy", "Memcpy S2D (SHARED -> DEVICE)")
    ('host_to_device', 'other')
    >>> operation("gpu_memcpy", "CopyDeviceToHost"), operation("gpu_memset", "Memset (Device)")
    ('device_to_host', 'memset')
    """
    if _FILL.search(category) or _FILL.search(name):
        return "memset"
    found = _COPY.search(name)
    if not found:
        return "other"
    source, target = [letter for letter in found.groups() if letter]
    if source == target == "P":
        return "peer_to_peer"
    if source not in _SIDES or target not in _SIDES:
        return "other"
    return f"{_SIDES[source]}_to_{_SIDES[target]}"


def host_memory(name: str) -> str | None:
    """Return the kind of host memory of a copy, from the same name."""
    return next((kind.lower() for kind in ("Pageable", "Pinned") if kind in name), None)
