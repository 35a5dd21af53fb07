"""What the synthetic processes are made of: API functions, kernels with launch shapes, copies, fills and ranges."""

import csv
from pathlib import Path
from typing import NamedTuple

import numpy as np

COMPUTE_STREAM, COPY_STREAM, COLLECTIVE_STREAM = 7, 14, 20
COLLECTIVE_SHARE = 0.03


class Function(NamedTuple):
    """An API function: its name as exported and the API that it belongs to."""

    name: str
    api: str


FUNCTIONS = (
    Function("cudaLaunchKernel_v7000", "runtime"),
    Function("cuLaunchKernelEx", "driver"),
    Function("cudaLaunchKernelExC_v11060", "runtime"),
    Function("cudaEventRecord_v3020", "runtime"),
    Function("cudaEventQuery_v3020", "runtime"),
    Function("cudaMemcpyAsync_v3020", "runtime"),
    Function("cudaMemcpyPeerAsync_v4000", "runtime"),
    Function("cudaMemsetAsync_v3020", "runtime"),
    Function("cudaStreamSynchronize_v3020", "runtime"),
)
LAUNCH, DRIVER_LAUNCH, COLLECTIVE_LAUNCH, RECORD, QUERY, COPY, PEER_COPY, FILL, SYNCHRONIZE = range(len(FUNCTIONS))


class MemoryKind(NamedTuple):
    """A copy or fill: its name, host memory, stream, call, speed, and nsys's copyKind, srcKind and dstKind."""

    operation: str
    host_memory: str | None
    stream: int
    function: int
    bytes_per_ns: int
    copy_kind: int | None = None
    source: int | None = None
    target: int | None = None


MEMORY_KINDS = (
    MemoryKind("host_to_device", "pinned", COPY_STREAM, COPY, 25, 1, 1, 2),
    MemoryKind("host_to_device", "pageable", COPY_STREAM, COPY, 6, 1, 0, 2),
    MemoryKind("device_to_host", "pinned", COPY_STREAM, COPY, 25, 2, 2, 1),
    MemoryKind("device_to_host", "pageable", COPY_STREAM, COPY, 6, 2, 2, 0),
    MemoryKind("device_to_device", None, COMPUTE_STREAM, COPY, 1500, 8, 2, 2),
    MemoryKind("memset", None, COMPUTE_STREAM, FILL, 2000),
    MemoryKind("peer_to_peer", None, COPY_STREAM, PEER_COPY, 150, 10, 2, 2),  # left out when there is one device
)

RANGES = ("step", "forward", "backward", "optimizer", "ncclAllReduce", "ncclAllGather", "ncclReduceScatter")
STEP, FORWARD, BACKWARD, OPTIMIZER = range(4)


class Catalogue:
    """Kernels by name and launch shape, read from kernels.csv; a shape's number tells its kernel too.

    Per shape: `name` (number of the kernel), `grid`, `block`, `mean_ns`, `function`; per kernel: `kernels` (the rows).
    """

    def __init__(self) -> None:
        with Path(__file__).with_name("kernels.csv").open(newline="") as file:
            self.kernels = list(csv.DictReader(file))
        shapes = [
            (number, size, [[int(n) for n in part.split()] for part in shape.split("/")])
            for number, kernel in enumerate(self.kernels)
            for size, shape in enumerate(kernel["shapes"].split(";"), start=1)
        ]
        self.name = np.array([number for number, _, _ in shapes])
        self.grid = np.array([grid for _, _, (grid, _) in shapes])
        self.block = np.array([block for _, _, (_, block) in shapes])

        def per_shape(key: str) -> np.ndarray:
            return np.array([self.kernels[number][key] for number in self.name])

        count = np.bincount(self.name)[self.name]
        self.mean_ns = per_shape("mean_us").astype(float) * 1000 * np.array([size / 2 for _, size, _ in shapes])
        self.is_collective = per_shape("launch") == "collective"
        functions = {"runtime": LAUNCH, "driver": DRIVER_LAUNCH, "collective": COLLECTIVE_LAUNCH}
        self.function = np.array([functions[launch] for launch in per_shape("launch")])
        self.range = np.array([self._range(self.kernels[number]["kernel"]) for number in self.name])
        weight = per_shape("weight").astype(float) / count
        self.compute_weight = np.where(self.is_collective, 0, weight)
        self.collective_weight = np.where(self.is_collective, weight, 0)

    @staticmethod
    def _range(kernel: str) -> int:
        collectives = ((number, text[4:]) for number, text in enumerate(RANGES) if text.startswith("nccl"))
        return next((number for number, text in collectives if kernel.startswith(f"ncclDevKernel_{text}_")), -1)

    def draw(self, rng: np.random.Generator, count: int) -> np.ndarray:
        """Shape numbers of `count` kernels, collectives among them."""
        among = np.arange(len(self.name))
        compute = rng.choice(among, count, p=self.compute_weight / self.compute_weight.sum())
        collective = rng.choice(among, count, p=self.collective_weight / self.collective_weight.sum())
        return np.where(rng.random(count) < COLLECTIVE_SHARE, collective, compute)
