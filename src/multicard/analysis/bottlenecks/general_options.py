"""What helps against each kind of bottleneck in any PyTorch program, of which multicard knows no parameters."""

from dataclasses import dataclass
from typing import Literal

from multicard.analysis.bottlenecks.bottlenecks import Kind
from multicard.analysis.bottlenecks.tuning_options import several_numa_nodes
from multicard.analysis.evidence import Configuration


@dataclass(frozen=True)
class GeneralOption:
    """Something to change in the program itself, in Markdown.

    `device` restricts it to one kind of device, `several` to several devices, `numa` to several NUMA nodes, and
    `threads` to ranks that compute with several threads.
    `learns_otherwise`: it changes what is learned from a sample. `pins`: it helps copies from pageable memory only.
    """

    description: str
    device: Literal["cuda", "cpu"] | None = None
    several: bool = False
    numa: bool = False
    threads: bool = False
    learns_otherwise: bool = False
    pins: bool = False

    def applies(self, configuration: Configuration) -> bool:
        """Whether it can be had on the devices of a configuration."""
        return (
            self.device in (None, configuration["device"])
            and (configuration["devices"] > 1 or not self.several)
            and (not self.numa or several_numa_nodes(configuration))
            and not (self.threads and configuration.mean("compute_threads") == _ranks_of_node(configuration))
        )


def _ranks_of_node(configuration: Configuration) -> float:
    return configuration["devices"] / (configuration["nodes"] or 1)


LARGER_BATCH = GeneralOption("a larger batch per device", learns_otherwise=True)
COMPILE = GeneralOption("`torch.compile`, which fuses kernels")
FUSED_OPTIMIZER = GeneralOption("`fused=True` or `foreach=True` of the optimizer")
AUTOCAST = GeneralOption("`torch.autocast` to bfloat16", learns_otherwise=True)
ACCUMULATION = GeneralOption(
    "gradient accumulation, with `no_sync()` in all but the last batch", several=True, learns_otherwise=True
)
FEWER_DEVICES = GeneralOption("fewer devices, which exchange less", several=True, learns_otherwise=True)

FOR_EQUAL_RANKS = (
    GeneralOption("equal work per rank: batches of equal length, and no rank that logs or saves alone"),
    GeneralOption("more loader workers, so that no single rank waits for data"),
    GeneralOption("each rank and its loader on one NUMA node (`numactl`)", numa=True),
    LARGER_BATCH,
    ACCUMULATION,
    FEWER_DEVICES,
)

LOADING = (
    GeneralOption("more loader workers (`num_workers`), as far as there are CPUs for them"),
    GeneralOption("`persistent_workers=True`, so that no pass begins by starting workers"),
    GeneralOption("a higher `prefetch_factor`, where the time of a batch varies"),
    GeneralOption("`pin_memory=True`, which prepares copies in the loader", "cuda", pins=True),
    GeneralOption("less work per sample: decoded, resized or tokenized once, beforehand"),
    GeneralOption("faster storage: a local disk, or few large files in the place of many small ones"),
)

COMMUNICATION = (
    LARGER_BATCH,
    ACCUMULATION,
    GeneralOption("another size of gradient buckets (`bucket_cap_mb` of `DistributedDataParallel`)", several=True),
    GeneralOption("gradients sent in 16 bits (a communication hook)", several=True, learns_otherwise=True),
    FEWER_DEVICES,
)

COMPUTE = (
    AUTOCAST,
    GeneralOption('TF32 (`torch.set_float32_matmul_precision("high")`)', "cuda", learns_otherwise=True),
    COMPILE,
    GeneralOption("`channels_last` for convolutions"),
    FUSED_OPTIMIZER,
)

GENERAL_OPTIONS: dict[Kind, tuple[GeneralOption, ...]] = {
    "data loading": LOADING,
    "host busy elsewhere": (
        *LOADING,
        GeneralOption("nothing slow between steps: logging, saving, preprocessing on the CPU"),
    ),
    "exposed communication": COMMUNICATION,
    "compute": COMPUTE,
    "compute or communication": (*COMPUTE, *COMMUNICATION),
    "evaluation": (GeneralOption("less frequent evaluation, or a smaller test set"),),
    "stalls": (
        GeneralOption("less work in these steps only, such as saving, logging, garbage collection or recompiling"),
    ),
    "other": (
        GeneralOption(
            "less work outside of loader, forward, backward and optimizer (a sampling profiler, `py-spy`, shows it)"
        ),
    ),
    "launch overhead": (
        COMPILE,
        GeneralOption('CUDA graphs (`torch.compile(mode="reduce-overhead")` or `torch.cuda.graph`)', "cuda"),
        FUSED_OPTIMIZER,
        LARGER_BATCH,
        GeneralOption("no waiting for the device in each step (`.item()`, `.cpu()`, printing a loss)", "cuda"),
    ),
    "waiting for other ranks": FOR_EQUAL_RANKS,
    "waiting for a CPU": (
        GeneralOption("fewer threads per rank (`torch.set_num_threads`, `OMP_NUM_THREADS`)", threads=True),
        GeneralOption("fewer loader workers, or ranks, than there are CPUs"),
        GeneralOption("no other programs on these CPUs"),
    ),
    "memory operations": (
        GeneralOption("`pin_memory=True` of the loader", "cuda", pins=True),
        GeneralOption("copies with `non_blocking=True`", "cuda"),
        GeneralOption("the next batch copied on a stream of its own while this one trains", "cuda"),
        GeneralOption("smaller copies: integers or 16 bits, converted on the device", "cuda"),
        GeneralOption("tensors made on the device, and updated in place"),
    ),
    "padding": (
        GeneralOption("batches of samples of similar length"),
        GeneralOption("several samples packed into one sequence"),
    ),
    "memory": (
        GeneralOption("a smaller batch per device", learns_otherwise=True),
        GeneralOption("activation checkpointing (`torch.utils.checkpoint`)"),
        AUTOCAST,
        GeneralOption("weights and optimizer state sharded over the devices (FSDP, ZeRO)", several=True),
        GeneralOption("an optimizer with less state", learns_otherwise=True),
    ),
}
