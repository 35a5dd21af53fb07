"""Energy and memory of a card, as its driver (NVML) counts them."""

import functools
import time
from typing import Any

import torch


class EnergyMeter:
    """Energy that the card of a CUDA device takes between `start` and `stop`, for everything that runs on it.

    NVML counts in millijoules and renews its counter a few times per second or more often, depending on the card,
    so an interval should last seconds. Finding the card takes NVML some 10 ms, once per process and when the meter
    is made; `start` and `stop` read one counter and do not wait for the GPU, so what is queued then counts for what
    comes after. Several intervals add up.

    >>> meter = EnergyMeter(torch.device("cpu"))
    >>> meter.start(), meter.stop(), meter.energy_j, meter.reason
    (None, None, None, 'no meter for a CPU')

    Attributes
    ----------
    energy_j
        Joules of all intervals so far; None without an interval or where a reading failed.
    duration_s
        Their seconds; None likewise.
    intervals
        Millijoules and seconds of each.
    reason
        Why there are no joules; None where there are.
    """

    def __init__(self, device: torch.device):
        self._nvml, self._card, self._problem = _find_card(device)
        self._began: tuple[int, float] | None = None
        self.intervals: list[tuple[int, float]] = []
        if self._problem is None:
            self._read()  # a card without a counter says so at once

    def start(self) -> None:
        """Begin an interval."""
        self._began = self._read()

    def stop(self) -> None:
        """End the interval."""
        began, now, self._began = self._began, self._read(), None
        if began and now:
            self.intervals.append((now[0] - began[0], now[1] - began[1]))

    @property
    def energy_j(self) -> float | None:
        """Joules of all intervals."""
        return None if self.reason else sum(interval[0] for interval in self.intervals) / 1000

    @property
    def duration_s(self) -> float | None:
        """Seconds of all intervals."""
        return None if self.reason else sum(interval[1] for interval in self.intervals)

    @property
    def reason(self) -> str | None:
        """Why there are no joules."""
        return self._problem or (None if self.intervals else "no interval was measured")

    def record(self) -> dict[str, float | str | None]:
        """For run.json."""
        return {"energy_j": self.energy_j, "duration_s": self.duration_s, "reason": self.reason}

    def _read(self) -> tuple[int, float] | None:
        """Millijoules and the time; None once anything went wrong: a sum with a gap is no sum."""
        if self._problem is not None:
            return None
        try:
            return self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._card), time.perf_counter()
        except Exception as error:  # whatever a driver may say: a job does not end for want of a meter
            self._problem = f"no energy counter: {error}"
            return None


def device_memory_used_bytes(device: torch.device) -> int | None:
    """Memory of the card in use by all processes, the CUDA context included, as nvidia-smi shows it.

    None on a CPU and where NVML does not tell. Does not wait for the GPU.
    """
    nvml, card, problem = _find_card(device)
    if problem is not None:
        return None
    try:
        # The second version leaves out what the driver reserves for itself, as nvidia-smi does.
        return nvml.nvmlDeviceGetMemoryInfo(card, version=nvml.nvmlMemory_v2).used
    except Exception:  # as above
        return None


@functools.cache
def _find_card(device: torch.device) -> tuple[Any, Any, str | None]:
    """NVML, its handle of the card, and why there is none.

    By UUID, since the CUDA index follows CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER and NVML's does not. A card in
    slices (MIG) has no meter: its counters are those of the whole card, with whatever runs beside.
    """
    if device.type != "cuda":
        return None, None, f"no meter for a {device.type.upper()}"
    try:
        import pynvml
    except ImportError:
        return None, None, "the package nvidia-ml-py is not installed"
    try:
        pynvml.nvmlInit()
        uuid = torch.cuda.get_device_properties(device).uuid
        card = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
    except Exception as error:  # as above
        return None, None, f"NVML does not know the card: {error}"
    if _is_sliced(pynvml, card):
        return None, None, "the card is in slices (MIG)"
    return pynvml, card, None


def _is_sliced(nvml: Any, card: Any) -> bool:
    try:
        return nvml.nvmlDeviceGetMigMode(card)[0] == nvml.NVML_DEVICE_MIG_ENABLE
    except Exception:  # a card that cannot be sliced answers with an error
        return False
