"""What multicard says of multi-GPU captures that others published: writes docs/public-captures.md and its pictures.

    python benchmarks/public_captures.py --traces FOLDER

The captures are not part of this repository. FOLDER has them as `nsys/<name>.sqlite` and `kineto/<name>.json.gz`, under
the names in `CAPTURES`; their sources are on the page. A picture holds a digest of the numbers that it shows, so that a
stale one is found without comparing pixels: tests/docs/test_public_captures.py, where MULTICARD_TRACES is set.
"""

import argparse
import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib

import multicard
from multicard.api.traces import TraceAnalysis
from multicard.figures.style import styled
from multicard.figures.timeline import timeline
from multicard.results.device_time import IDLE_CAUSES, DevicePart, device_time

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGE = DOCS / "public-captures.md"
PICTURES = {"h100": "public-captures-h100.png", "a100": "public-captures-a100.png"}
PICTURE_DPI = 220  # so that screens of high density show it sharp
READING_A_DIFF = "486440599c8d3f049a62d8e546f5e7cd91b1111c"  # commit of nsys-ai

Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Capture:
    """A capture that others published.

    Attributes
    ----------
    path
        In the folder of captures, which is also how the page calls it.
    source
        Repository, and the file in it where it is known.
    """

    path: str
    what: str
    source: str
    licence: str


NSYS_AI_FILES = "https://github.com/GindaChen/nsys-ai/blob/main/tests/fixtures"
HTA_FILES = "https://github.com/facebookresearch/HolisticTraceAnalysis/blob/main/tests/data"
NSYS_AI = "[nsys-ai](https://github.com/GindaChen/nsys-ai)"
HTA = "[HolisticTraceAnalysis](https://github.com/facebookresearch/HolisticTraceAnalysis)"
TRACELENS = "[TraceLens](https://github.com/AMD-AGI/TraceLens)"
CAPTURES = {
    "before": Capture(
        "nsys/nsys-ai_mfu_2gpu_before_schema3.25.0.sqlite",
        "training of a video model (FastVideo), 2 × H100, 0.3 s; Nsight Systems 2026.2.1",
        f"{NSYS_AI}, [mfu_2gpu_before.sqlite]({NSYS_AI_FILES}/mfu_2gpu_before.sqlite)",
        "MIT",
    ),
    "after": Capture(
        "nsys/nsys-ai_mfu_2gpu_after_schema3.25.0.sqlite",
        "the same after a change",
        f"{NSYS_AI}, [mfu_2gpu_after.sqlite]({NSYS_AI_FILES}/mfu_2gpu_after.sqlite)",
        "MIT",
    ),
    "inference": Capture(
        "nsys/nsys-ai_h100_2gpu_1s_schema3.25.0.sqlite",
        "a second of FastVideo's inference test `wan-t2v-1.3b-h100-sp2`, 2 × H100; Nsight Systems 2026.2.1",
        f"{NSYS_AI}, [h100_2gpu_1s.sqlite]({NSYS_AI_FILES}/h100_2gpu_1s.sqlite)",
        "MIT",
    ),
    "a100": Capture(
        "kineto/hta_nccl_allreduce_broadcast.json.gz",
        "training of a ResNet, rank 0 of 2, A100; PyTorch's profiler",
        f"{HTA}, [nccl_data.json.gz]({HTA_FILES}/nccl_parser_config/nccl_data.json.gz)",
        "MIT",
    ),
    "v100": Capture(
        "kineto/hta_v100_2rank_allreduce_rank1.json.gz",
        "training, rank 1 of 2, V100; PyTorch's profiler",
        HTA,
        "MIT",
    ),
    "b200": Capture(
        "kineto/tracelens_b200_eager.json.gz",
        "language-model inference with vLLM's kernels, rank 0 of 8, B200; PyTorch's profiler",
        TRACELENS,
        "MIT",
    ),
}


def read(folder: Path) -> dict[str, TraceAnalysis]:
    """All captures as multicard reads them.

    Raises
    ------
    UserError
        If one is not there or cannot be read.
    """
    return {name: multicard.read_trace(folder / capture.path) for name, capture in CAPTURES.items()}


def main() -> None:
    """Write the page and its pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=Path, required=True, help="folder with the captures")
    traces = read(parser.parse_args().traces)
    PAGE.write_text(page(traces), encoding="utf-8")
    matplotlib.use("Agg")
    for name, file in PICTURES.items():
        rows = shown(name, traces)
        with styled():
            timeline(rows).savefig(DOCS / "assets" / file, dpi=PICTURE_DPI, metadata={"Description": digest(rows)})


def shown(picture: str, traces: dict[str, TraceAnalysis]) -> Rows:
    """The rows of timelines that a picture shows."""
    names = ("before", "after") if picture == "h100" else (picture,)
    return [row | {"report": name} for name in names for row in traces[name].rows("timeline")]


def digest(rows: Rows) -> str:
    """SHA-256 of the rows with their numbers to the nanosecond."""
    rounded = [
        {key: round(value, 9) if isinstance(value, float) else value for key, value in row.items()} for row in rows
    ]
    return hashlib.sha256(json.dumps(rounded, sort_keys=True).encode()).hexdigest()


def table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table in Markdown."""
    lines = [list(header), *map(list, rows)]
    lines.insert(1, ["---"] * len(lines[0]))
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def ms(seconds: float | None, digits: int = 1) -> str:
    """Milliseconds; a dash for what was not recorded."""
    return "–" if seconds is None else f"{1e3 * seconds:.{digits}f}"


def spaced(count: int) -> str:
    """A count with its digits in groups of three."""
    return f"{count:,}".replace(",", " ")


def calls(trace: TraceAnalysis, collective: str) -> int:
    """How many kernels of a collective there are."""
    return sum(row["calls"] for row in trace.rows("collectives") if row["collective"] == collective)


def captures_table() -> str:
    """Where the captures come from."""
    rows = [(f"`{name}`", capture.what, capture.source, capture.licence) for name, capture in CAPTURES.items()]
    return table(("capture", "what it is", "source", "licence"), rows)


def timeline_table(traces: dict[str, TraceAnalysis]) -> str:
    """Return where the time of every device went, over the whole capture, by the parts that any of them has."""
    captures = {name: trace.timeline[trace.timeline["scope"] == "capture"] for name, trace in traces.items()}
    seconds = {name: device_time(rows) for name, rows in captures.items()}
    shown_parts = [part for part in DevicePart if any(parts[part].max() >= 5e-5 for parts in seconds.values())]
    rows = []
    for name in traces:
        for (_, row), (_, parts) in zip(captures[name].iterrows(), seconds[name].iterrows(), strict=True):
            of_device = (f"`{name}`", str(row["device"]), ms(row["span_s"]))
            rows.append((*of_device, *(ms(parts[part]) for part in shown_parts)))
    return table(("capture", "GPU", "span (ms)", *(f"{part} (ms)" for part in shown_parts)), rows)


def compared_table(before: TraceAnalysis, after: TraceAnalysis) -> str:
    """What the authors of nsys-ai say of their pair, beside what multicard says; sums over both GPUs."""

    def both(of: Callable[[TraceAnalysis], float]) -> tuple[float, float]:
        return of(before), of(after)

    def arrow(of: Callable[[TraceAnalysis], float], digits: int) -> str:
        return " → ".join(ms(value, digits) for value in both(of)) + " ms"

    def change(of: Callable[[TraceAnalysis], float]) -> str:
        first, second = both(of)
        return f"{1e3 * (second - first):+.2f} ms".replace("-", "−")

    def whole(column: str) -> Callable[[TraceAnalysis], float]:
        return lambda trace: sum(row[column] for row in trace.rows("timeline") if row["scope"] == "capture")

    def kernels(name: str, column: str) -> Callable[[TraceAnalysis], float]:
        return lambda trace: sum(row[column] for row in trace.rows("kernels") if name in row["kernel"])

    def counts(name: str) -> str:
        return " → ".join(f"{value:.0f}" for value in both(kernels(name, "calls")))

    def rest(trace: TraceAnalysis) -> float:
        return whole("span_s")(trace) - whole("compute_s")(trace) - whole("exposed_communication_s")(trace)

    flash, send = "flash_fwd_kernel", "ncclDevKernel_SendRecv"
    rows = [
        ("time of all kernels, added up", "535.20 → 488.84 ms", arrow(kernels("", "total_s"), 2)),
        ("exposed communication", "25.400 → 33.740 ms", arrow(whole("exposed_communication_s"), 3)),
        (f"change of `{send}`", "+8.34 ms", change(kernels(send, "total_s"))),
        (f"calls of `{send}`", "66 → 62", counts(send)),
        (f"change of `{flash}`", "−31.56 ms", change(kernels(flash, "total_s"))),
        (f"calls of `{flash}`", "68 → 60", counts(flash)),
        ("change of compute", "−54.70 ms", change(whole("compute_s"))),
        ("change of the rest (theirs: launch overhead and idle)", "+46.30 ms", change(rest)),
        ("span (theirs: *step time*)", "598.52 → 598.46 ms", arrow(whole("span_s"), 2)),
    ]
    return table(("both GPUs together", "nsys-ai", "multicard"), rows)


def messages_table(trace: TraceAnalysis) -> str:
    """Collectives by the size of their messages."""
    rows = [
        (
            row["collective"],
            spaced(row["size_bytes"]),
            str(row["calls"]),
            ms(row["median_s"], 2),
            ms(row["max_s"], 2),
            "–" if row["bus_bandwidth_bytes_per_s"] is None else f"{row['bus_bandwidth_bytes_per_s'] / 1e9:.2f}",
        )
        for row in sorted(trace.rows("message_sizes"), key=lambda row: (row["collective"], row["size_bytes"]))
    ]
    header = ("collective", "message (bytes)", "calls", "median (ms)", "longest (ms)", "bus bandwidth (GB/s)")
    return table(header, rows)


def share(trace: TraceAnalysis, name: str) -> float:
    """A share of a device's time, of the first device."""
    return next(row["ratio"] for row in trace.rows("shares") if row["share"] == name)


def absent_table(traces: dict[str, TraceAnalysis]) -> str:
    """Tables that multicard refuses to give, with its reason."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for name, trace in traces.items():
        for table_name, reason in trace.absent.items():
            reasons.setdefault((table_name, reason), []).append(f"`{name}`")
    everywhere = {key for key, names in reasons.items() if len(names) == len(traces)}
    rows = [(f"`{key[0]}`", key[1], "all" if key in everywhere else ", ".join(names)) for key, names in reasons.items()]
    return table(("table", "cannot tell, because", "captures"), rows)


def page(traces: dict[str, TraceAnalysis]) -> str:
    """The page in Markdown."""
    a100, v100, b200, inference = (traces[name] for name in ("a100", "v100", "b200", "inference"))
    sizes = a100.rows("message_sizes")
    longest = max(sizes, key=lambda row: row["max_s"])
    apart = max(row["max_s"] / row["median_s"] for row in sizes if row["collective"] == "all_reduce")
    nccl = ", ".join(f"{row['calls']} {row['collective']}" for row in a100.rows("collectives"))
    first = next(row for row in a100.rows("timeline") if row["scope"] == "step")
    launching = sum(first[f"{cause}_s"] for cause in IDLE_CAUSES[DevicePart.IDLE_LAUNCHING])
    whole = inference.rows("timeline")[0]
    return f"""# Captures of other people's GPUs

This page compares multicard's analysis of published multi-GPU captures with that of their authors. Nothing here is our
own measurement, and it decides no claim of the papers. `benchmarks/public_captures.py` writes the page. The captures
are not part of this repository. `tests/docs/test_public_captures.py` checks the page if `MULTICARD_TRACES` names a
folder with them.

{captures_table()}

Licences are those of the repositories. The captures were not changed.

## Where the time of each GPU goes

{timeline_table(traces)}

Per GPU, over the whole capture, by unions of intervals over streams: the parts add up to the span
([definitions](step-time.md#from-a-trace)).

## Two H100s, before and after a change

![Share of the capture that two GPUs compute, communicate and are idle, before and after](assets/{PICTURES["h100"]})

The authors use this pair as an example of
[how to read a comparison](https://github.com/GindaChen/nsys-ai/blob/{READING_A_DIFF}/docs/user/reading-a-diff.md).
Their verdict is *neutral*: the GPUs have less work, but the span is as long as before.

{compared_table(traces["before"], traces["after"])}

Both tools read the same kernels. Their span covers kernels, multicard's all activities of a GPU, copies included. Apart
from 0.01 ms, this explains the last two rows. multicard adds why the GPUs wait: most of their idle time, and nearly all
of its increase, is launching. The authors also compare one iteration by its marker: 482.87 → 340.77 ms. multicard
detects no range with the name of a step, reports this, and compares whole captures. The authors do not name the change.

## Rank 0 of two A100s

![Share of the capture that a GPU computes, communicates and is idle, and each step](assets/{PICTURES["a100"]})

{messages_table(a100)}

[A test of the authors](https://github.com/facebookresearch/HolisticTraceAnalysis/blob/main/tests/test_trace_parse.py)
expects 21 kernels of NCCL, the longest an all-reduce of 2 049 000 elements between the ranks 0 and 1. multicard finds
{nccl}. The longest is an {longest["collective"]} of {spaced(longest["size_bytes"])} bytes,
{spaced(longest["size_bytes"] // 4)} elements of float32, between {longest["ranks"]} ranks.

A bus bandwidth from a trace is a lower bound, because the time of a kernel includes waiting for the other rank: the
longest all-reduce of a size takes up to {apart:.1f} times the median. Most of the time the GPU waits for launches:
{ms(launching, 0)} of {ms(first["span_s"], 0)} ms in the first step.

## The others

We found no analysis of these by their authors.

- `v100`: {calls(v100, "all_reduce")} all-reduces take {100 * share(v100, "nccl"):.0f}% of the time of all kernels, none
  of it beside compute.
- `inference`: copies to the GPU and other memory operations take {100 * whole["memory_s"] / whole["span_s"]:.0f}% of
  the time, compute {100 * whole["compute_s"] / whole["span_s"]:.0f}%.
- `b200`: {calls(b200, "all_reduce")} all-reduces are PyTorch's own kernels (`multimem_all_reduce_kernel`) without
  recorded sizes, so they have no bandwidth. One all-gather is NCCL's.

## What multicard cannot determine

{absent_table(traces)}
"""


if __name__ == "__main__":
    main()
