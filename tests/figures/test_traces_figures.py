"""What traces show, as its figures show it; all tables are synthetic."""

from pathlib import Path
from typing import Any

import pytest

from figures.measured import closed, gathered, group_names, heading, legend, lengths, measured
from multicard.figures.draw import draw
from multicard.figures.timeline import GPU_FILLS
from multicard.figures.timeline import timeline as draw_timeline
from multicard.trace.files import open_trace
from multicard.trace.tables import activity_tables
from synthetic import nsys_export


def info(steps: float = 10) -> list[dict[str, Any]]:
    return [{"run": run, "traced_steps": steps} for run in ("run0", "run1")]


def rows(run: str, processes: int, **values: Any) -> list[dict[str, Any]]:
    """The same row of each process of a run, which drives one GPU."""
    return [{"run": run, "report": "r", "rank": i, "process": 100 + i, "device": i, **values} for i in range(processes)]


def api(**seconds: float) -> list[dict[str, Any]]:
    """Calls of both runs, whose processes take the same time."""
    runs = (("run0", 1), ("run1", 2))
    return [
        row
        for run, processes in runs
        for function, total in seconds.items()
        for row in rows(run, processes, api="runtime", function=function, total_s=total)
    ]


def axes_of(name: str, folder: Path, **tables: list[dict[str, Any]]) -> tuple:
    """Panels of a figure of two runs with these tables, the figure before them, and its numbers."""
    runs = [{"strategy": "ddp-ds", "device": "cuda", "iteration_time_s": 0.1, "devices": n} for n in (1, 2)]
    figure, data = draw(name, gathered(folder, measured("vision", *runs), **{"runs_info": info()} | tables))
    return closed(figure), *figure.axes, data


def test_cuda_calls_are_per_step_and_process_the_papers_functions_first(tmp_path: Path) -> None:
    calls = api(cudaMalloc=0.9, cudaLaunchKernel_v7000=0.2, cudaLaunchKernel=0.1, cudaStreamSynchronize=0.4)
    calls += [row | {"api": "backtrace", "total_s": 5.0} for row in calls]
    figure, axes, _ = axes_of("cuda_api", tmp_path, cuda_api=calls)
    assert heading(axes) == "CUDA API time"
    assert axes.get_xlabel() == "Summed time of calls per step and process (ms)"
    assert group_names(axes) == ["ddp-ds, 1 GPU", "ddp-ds, 2 GPUs"]
    # Ten steps: 0.3 s of launches are 30 ms a step.
    assert lengths(axes) == {
        "cudaLaunchKernel": pytest.approx([30, 30]),
        "cudaStreamSynchronize": pytest.approx([40, 40]),
        "cudaMalloc": pytest.approx([90, 90]),
    }
    assert legend(figure) == [["cudaLaunchKernel", "cudaStreamSynchronize", "cudaMalloc"]]


def test_functions_beyond_those_with_most_time_are_summed_and_a_name_starts_no_formula(tmp_path: Path) -> None:
    calls = api(cudaLaunchKernel=0.1, **{f"cuda{i}$b$": 0.1 * i for i in range(1, 11)})
    _, axes, _ = axes_of("cuda_api", tmp_path, cuda_api=calls)
    shown = lengths(axes)
    assert list(shown) == ["cudaLaunchKernel", *(rf"cuda{i}\$b\$" for i in range(10, 2, -1)), "other"]
    assert shown["other"] == pytest.approx([30, 30])


def test_without_steps_or_a_trace_the_figure_says_why_there_is_nothing(tmp_path: Path) -> None:
    *_, data = axes_of("cuda_api", tmp_path / "a", cuda_api=api(cudaLaunchKernel=1.0), runs_info=info(None))
    words = "no steps were found in the traces, so there are no CUDA calls per step"
    assert data["nothing_to_show"].tolist() == [words]
    *_, data = axes_of("cuda_api", tmp_path / "c", runs_info=info(None))
    assert data["nothing_to_show"].tolist() == ["no CUDA calls were recorded"]
    missing = [{"run": "run0", "trace_missing": "nsys: permission denied"}]
    *_, data = axes_of("kernel_classes", tmp_path / "b", runs_info=missing)
    assert data["nothing_to_show"].tolist() == ["no kernels were recorded: nsys: permission denied"]


def test_kernels_are_per_step_and_gpu_by_class(tmp_path: Path) -> None:
    kernels = [
        *rows("run0", 1, **{"class": "matrix_multiply", "total_s": 0.5}),
        *rows("run1", 2, **{"class": "matrix_multiply", "total_s": 0.5}),
        *rows("run1", 2, **{"class": "communication", "total_s": 0.2}),
    ]
    _, axes, _ = axes_of("kernel_classes", tmp_path, kernel_classes=kernels)
    assert lengths(axes) == {"matrix multiply": pytest.approx([50, 50]), "communication": pytest.approx([0, 20])}
    assert axes.get_xlabel() == "Summed time of kernels per step and GPU (ms)"


def test_transfers_show_time_and_bytes_by_direction_and_host_memory(tmp_path: Path) -> None:
    copies = {"operation": "host_to_device", "total_s": 0.1}
    operations = [
        *rows("run0", 1, **copies, host_memory="pageable", bytes=10_000_000),
        *rows("run1", 2, **copies, host_memory="pinned", bytes=20_000_000),
        *rows("run1", 2, operation="memset", total_s=0.01, bytes=1000),
    ]
    figure, left, right, data = axes_of("memory_transfers", tmp_path, memory_operations=operations)
    assert left.get_xlabel() == "Time per step and GPU (ms)"
    assert right.get_xlabel() == "Bytes per step and GPU (MB)"
    kinds = ["host to device, pageable", "host to device, pinned", "memset"]
    assert sorted(legend(figure)[0]) == kinds
    assert [lengths(right)[kind][1] for kind in kinds] == pytest.approx([0, 2, 0.0001])
    assert [lengths(left)[kind][0] for kind in kinds] == pytest.approx([10, 0, 0])
    assert data["host to device, pinned (bytes)"].fillna(0).tolist() == pytest.approx([0, 2e6])


def timeline(run: str, devices: int, busy: float) -> list[dict[str, Any]]:
    """Captures of 1 s: computing for `busy`, a tenth of it exposed communication, 0.1 s of late launches."""
    return rows(
        run, devices, scope="capture", span_s=1.0, busy_s=busy, compute_s=0.9 * busy, communication_s=0.1 * busy,
        memory_s=0.0, overlapped_s=0.0, exposed_communication_s=0.1 * busy, idle_s=1 - busy, idle_launching_s=0.1,
    )  # fmt: skip


def test_the_time_of_a_gpu_adds_up_and_each_gpu_has_a_mark(tmp_path: Path) -> None:
    devices = [*timeline("run0", 1, 0.8), *timeline("run1", 1, 0.5), *timeline("run1", 2, 0.7)[1:]]
    figure, axes, _ = axes_of("device_time", tmp_path, timeline=devices)
    parts = lengths(axes)
    assert parts == {
        "compute": pytest.approx([72, 54]),
        "exposed communication": pytest.approx([8, 6]),
        "idle (launching)": pytest.approx([10, 10]),
        "idle (unknown)": pytest.approx([10, 30]),
    }
    tick = "busy time of one GPU in one run"
    [marks] = [line for line in axes.get_lines() if line.get_label() == tick]
    assert list(zip(*marks.get_data(), strict=True)) == [pytest.approx(place) for place in ((80, 0), (50, 1), (70, 1))]
    assert axes.get_xlabel() == "Share of the profiled time (%)"
    assert legend(figure)[0][-1] == tick


def test_the_four_shares_have_a_panel_each_and_say_of_what(tmp_path: Path) -> None:
    found = [
        *rows("run0", 1, share="nccl", total_s=0.0, of_s=1.0),
        # Two GPUs with 1 of 2 s and 0 of 2 s: a quarter of both.
        *rows("run1", 1, share="nccl", total_s=1.0, of_s=2.0),
        *rows("run1", 2, share="nccl", total_s=0.0, of_s=2.0)[1:],
        *rows("run1", 2, share="kernel_launches", total_s=1.0, of_s=2.0),
    ]
    _, *panels, data = axes_of("time_shares", tmp_path, shares=found)
    assert [heading(axes) for axes in panels] == [
        "Host-to-device copies", "Kernel launches", "Synchronizations", "NCCL kernels",
    ]  # fmt: skip
    assert panels[3].get_ylabel().split() == ["Share", "of", "the", "time", "of", "kernels", "(%)"]
    assert panels[3].containers[0].lines[0].get_ydata().tolist() == pytest.approx([0, 25])
    assert panels[1].containers[0].lines[0].get_ydata().tolist() == pytest.approx([50])
    assert [text.get_text() for text in panels[0].texts] == ["not recorded"]
    assert data["nccl"].tolist() == pytest.approx([0, 0.25])


def test_collectives_have_their_time_and_bus_bandwidth_over_the_size_of_messages(tmp_path: Path) -> None:
    gradients = {"collective": "all_reduce", "calls": 20}
    sums = [
        # The second GPU waits for the first.
        *rows("run1", 1, **gradients, total_s=0.1), *rows("run1", 2, **gradients, total_s=0.3)[1:],
        *rows("run1", 2, collective="all_gather", calls=10, total_s=0.05),
        *rows("run1", 2, collective=None, calls=10, total_s=0.01),
    ]  # fmt: skip
    buckets = gradients | {"calls": 10}
    sizes = [
        *rows("run1", 1, **buckets, size_bytes=4_000_000, total_s=0.08), *rows("run1", 2, **buckets,
        size_bytes=4_000_000, total_s=0.28)[1:], *rows("run1", 1, **buckets, size_bytes=1_000_000, total_s=0.02),
    ]  # fmt: skip
    figure, left, right, data = axes_of("collectives", tmp_path, collectives=sums, message_sizes=sizes)
    assert group_names(left) == ["ddp-ds, 2 GPUs"]
    # Per step of ten, mean over two GPUs.
    assert lengths(left) == {
        "all-reduce": pytest.approx([20]), "all-gather": pytest.approx([5]), "unnamed": pytest.approx([1]),
    }  # fmt: skip
    # nccl-tests: 40 MB in 0.08 s and 10 MB in 0.02 s among 2 ranks, × 2 (n - 1) / n.
    assert right.collections[0].get_offsets().tolist() == [pytest.approx([4e6, 500e6]), pytest.approx([1e6, 500e6])]
    assert [text.get_text() for text in right.get_legend().get_texts()] == ["2"]
    assert right.get_legend().get_title().get_text() == "GPUs"
    assert (right.get_xlabel(), right.get_ylabel()) == ("Message size", "Bus bandwidth")
    assert legend(figure) == [["all-reduce", "all-gather", "unnamed"]]
    assert data["bus_bandwidth_bytes_per_s"].dropna().tolist() == pytest.approx([500e6, 500e6])


def test_the_measured_peak_of_a_number_of_gpus_is_a_line(tmp_path: Path) -> None:
    gradients = {"collective": "all_reduce", "calls": 10, "size_bytes": 1_000_000}
    tables = {
        "collectives": [*rows("run0", 2, collective="all_reduce", calls=10, total_s=0.02)],
        "message_sizes": [
            *rows("run0", 2, **gradients, total_s=0.02), *rows("run1", 4, **gradients, total_s=0.02),
        ],
        "runs_info": info(),
    }  # fmt: skip
    runs = [{"strategy": "ddp-ds", "device": "cuda", "iteration_time_s": 0.1, "devices": n} for n in (2, 4)]
    runs[0]["peak_bus_bandwidth_bytes_per_s"] = 2e9
    figure, data = draw("collectives", gathered(tmp_path, measured("vision", *runs), **tables))
    _, right = closed(figure).axes
    assert [line.get_ydata()[0] for line in right.get_lines() if len(line.get_ydata())] == [2e9]
    assert [text.get_text() for text in right.get_legend().get_texts()] == ["2", "4", "peak of 2"]
    # 10 MB in 20 ms, times 1 between two ranks and 3/2 between four: the axis has these and the peak.
    low, high = right.get_ylim()
    assert 100e6 < low < 500e6 and 2e9 < high < 10e9
    peaks = data.dropna(subset=["size_bytes"])["peak_bus_bandwidth_bytes_per_s"]
    assert peaks.isna().tolist() == [False, True] and peaks.tolist()[0] == 2e9


def test_a_bus_bandwidth_counts_the_ranks_that_the_trace_tells_and_is_left_out_without_sizes(tmp_path: Path) -> None:
    # nccl-tests counts what all ranks gather: 4 MB of each of 4 ranks in 0.1 s, × (n - 1) / n.
    gather = {"collective": "all_gather", "calls": 1, "total_s": 0.1}
    sizes = rows("run1", 2, **gather, size_bytes=4_000_000, ranks=4)
    sums = rows("run1", 2, **gather)
    _, _, right, _ = axes_of("collectives", tmp_path, collectives=sums, message_sizes=sizes)
    assert right.collections[0].get_offsets()[:, 1].tolist() == [pytest.approx(120e6)]
    sums = rows("run1", 2, collective="all_reduce", calls=10, total_s=0.1)
    _, left, right, data = axes_of("collectives", tmp_path / "sums", collectives=sums)
    assert lengths(left) == {"all-reduce": pytest.approx([10])}
    assert [text.get_text() for text in right.texts] == ["sizes of messages were not recorded"]
    assert "bus_bandwidth_bytes_per_s" not in data


@pytest.fixture
def captured(tmp_path: Path) -> list[dict]:
    return activity_tables([open_trace(nsys_export(tmp_path / "t$1.sqlite"))], only=["timeline"]).rows["timeline"]


def test_devices_and_steps_of_a_trace_are_drawn(captured: list[dict]) -> None:
    figure = draw_timeline(captured)
    shares, steps = figure.axes
    assert heading(shares) == "Share of the capture"
    # Parts without time are neither drawn nor in the legend.
    assert legend(figure) == [["compute", "exposed memory operations", "idle (launching)", "idle (queued)"]]
    assert len(shares.patches) == 4 and len(steps.patches) == 2 * len(GPU_FILLS)  # each part, most of no height
    # Steps of 10 ms each.
    assert max(bar.get_y() + bar.get_height() for bar in steps.patches) == pytest.approx(10)


def test_many_steps_share_a_bar(captured: list[dict]) -> None:
    many = [captured[0]] + [captured[1] | {"step": number} for number in range(1, 1001)]
    steps = draw_timeline(many).axes[1]
    assert len(steps.patches) == 59 * len(GPU_FILLS)  # 1000 / 17
    assert "mean of 17" in steps.get_xlabel()
