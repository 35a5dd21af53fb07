"""Synthetic experiments that each claim of the papers is true of, false of, or too scattered to tell."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from factories import SCATTERED, STEADY, Row, make_results, tuning_runs, vision_runs
from multicard.papers.judge import JudgedClaim, judge
from multicard.papers.tables import BOTH_PAPERS
from multicard.results.results import Results

Experiment = tuple[list[list[Row]], dict[str, list[Row]]]


def verdict_on(claim: str, evidence: Results) -> JudgedClaim:
    [judged] = judge([each for each in BOTH_PAPERS if each.id == claim], evidence)
    return judged


def results_of(folder: Path, experiment: Experiment, **others: Any) -> Results:
    scenarios, tables = experiment
    return make_results(folder, *scenarios, tables=tables, **others)


def changed(experiment: Experiment, change: Callable[[Row], Row]) -> Experiment:
    scenarios, tables = experiment
    return [[change(row) for row in rows] for rows in scenarios], tables


def on_cpu(experiment: Experiment) -> Experiment:
    """The same by CPU processes; `dp` exists on GPUs only."""
    return changed(experiment, lambda row: row | {"device": "cpu"})


def strategies(ddp_ds: float = 0.9, dp: float = 0.4, scatter: Any = STEADY, dp_waits: float = 0.02) -> Experiment:
    """Efficiency on two and four devices."""
    rows = vision_runs(100, strategy="single")
    for devices in (2, 4):
        rows += vision_runs(100 * devices * ddp_ds, scatter, devices=devices)
        rows += vision_runs(100 * devices * dp, strategy="dp", devices=devices, data_share=dp_waits)
    return [rows], {}


def precisions(fp32: float = 1.6, fp16: float = 2.4, largest: float = 3.3, accuracy: float = 1.0) -> Experiment:
    """Speed over that of FP64, of FP16 with the largest images as well, and accuracy of FP16 over that of FP32."""
    rows = (
        vision_runs(100, precision="fp64")
        + vision_runs(100 * fp32, precision="fp32")
        + vision_runs(100 * fp16, precision="fp16")
    )
    rows += vision_runs(20, precision="fp64", image_size=500)
    rows += vision_runs(20 * largest, precision="fp16", image_size=500)
    short = [row | {"steps_per_epoch": 200} for row in rows]
    full = [
        row
        for precision, reached in (("fp32", 0.9), ("fp16", 0.9 * accuracy))
        for row in vision_runs(100, precision=precision, epochs=19, test_accuracy=reached)
    ]
    return [short + full], {}


def pinned(one: float, four: float, scatter: Any = STEADY) -> Experiment:
    """Speed with pinned memory over that without, on one and on four devices."""
    rows = []
    for devices, gain in ((1, one), (4, four)):
        rows += vision_runs(100, devices=devices) + vision_runs(100 * gain, scatter, devices=devices, pin_memory=True)
    return [rows], {}


def two_kinds(llm: float, vision: float, scatter: Any = STEADY) -> Experiment:
    """Speed-up on four devices."""
    is_vision = vision_runs(100) + vision_runs(100 * vision, devices=4)
    return [is_vision, tuning_runs(1.0) + tuning_runs(4 / llm, scatter, devices=4)], {}


def calls(*copies: float) -> Experiment:
    """Part of the time of CUDA calls that copies take, of each repeat; three quarters of the rest are launches."""
    table = []
    for run, part in enumerate(copies):
        for function, seconds in (
            ("cudaLaunchKernel", 0.75 * (1 - part)), ("cudaStreamSynchronize", 0.25 * (1 - part)),
            ("cudaMemcpyAsync", part),
        ):  # fmt: skip
            table.append({"at": run, "api": "runtime", "function": function, "total_s": seconds})
        table.append({"at": run, "api": "backtrace", "function": "cudaMemcpyAsync", "total_s": 100.0})
    return [tuning_runs(1.0, factors=(1.0,) * len(copies))], {"cuda_api": table}


def sizes(large: float, small: float) -> Experiment:
    """Efficiency on four devices at 500 px and at 100 px, which has a 25th of the pixels."""
    rows = []
    for size, speed, efficiency in ((500, 100, large), (100, 2500, small)):
        rows += vision_runs(speed, image_size=size) + vision_runs(4 * speed * efficiency, image_size=size, devices=4)
    return [rows], {}


def switched(gain: float, scatter: Any = STEADY, **switch: Any) -> Experiment:
    """Speed with a switch over that without."""
    return [vision_runs(100) + vision_runs(100 * gain, scatter, **switch)], {}


def techniques(scatter: Any = STEADY, **changed: tuple[float, float]) -> Experiment:
    """Iteration times and peaks of memory of the techniques, those changed as (time, memory); LoRA may scatter."""
    numbers = {
        "lora": (1.0, 20.0), "qlora": (1.4, 10.0), "dpo": (2.0, 30.0), "qat_weights": (3.0, 70.0),
        "qat_adapters": (2.2, 35.0),
    } | changed  # fmt: skip
    rows = []
    for number, (name, (time, memory)) in enumerate(numbers.items()):
        technique, _, trained = name.partition("_")
        own = {"technique": technique, "qat_of": trained or "adapters", "learning_rate": 1e-4 * (number + 1)}
        rows += tuning_runs(time, scatter if name == "lora" else STEADY, peak_memory_bytes=1e9 * memory, **own)
    return [rows], {}


def accuracy(*reached: float, epochs: int = 20) -> Experiment:
    """Accuracy after the second epoch, of each repeat; it falls afterwards."""
    rows = vision_runs(100, factors=(1.0,) * len(reached), epochs=epochs, test_accuracy=0.5)
    table = [
        {"at": run, "epoch": epoch, "test_accuracy": value}
        for run, best in enumerate(reached)
        for epoch, value in ((1, 0.4), (2, best), (3, 0.5), (21, 0.999))
    ]
    return [rows], {"epochs": table}


# In each of these all tests of the claim are confirmed.
TRUE: dict[str, Experiment] = {
    "ddp_ds_scales": strategies(),
    "fp16_speedup": precisions(),
    "pin_memory_gain": pinned(1.28, 1.18),
    "llm_scaling_is_smaller": two_kinds(2.5, 3.8),
    "llm_bound_by_launch_and_sync": calls(0.1, 0.12, 0.11),
    "large_images_scale": sizes(0.9, 0.5),
    "nhwc_gain": switched(1.2, layout="nhwc"),
    "dali_gain": switched(1.4, loader="dali"),
    "lora_faster_and_smaller_than_dpo": techniques(),
    "qlora_smallest": techniques(),
    "qat_heaviest": techniques(),
    "mnist_accuracy": accuracy(0.985, 0.986, 0.984),
}
# Each of these refutes the tests of the claim that are listed by number.
FALSE: list[tuple[str, set[int], Experiment]] = [
    ("ddp_ds_scales", {0}, strategies(ddp_ds=0.4)),
    ("ddp_ds_scales", {1}, strategies(dp=0.9)),
    ("fp16_speedup", {0}, precisions(fp32=1.05)),
    ("fp16_speedup", {1, 2}, precisions(fp16=1.1, largest=1.1)),
    ("fp16_speedup", {2}, precisions(largest=2.0)),
    ("fp16_speedup", {3}, precisions(accuracy=0.9)),
    ("pin_memory_gain", {0}, pinned(1.10, 1.02)),
    ("pin_memory_gain", {0}, pinned(1.5, 1.4)),
    ("pin_memory_gain", {1}, pinned(1.18, 1.28)),
    ("pin_memory_gain", {1}, pinned(1.23, 1.23)),
    ("llm_scaling_is_smaller", {0}, two_kinds(3.8, 2.5)),
    ("llm_scaling_is_smaller", {0}, two_kinds(3.0, 3.0)),
    ("llm_bound_by_launch_and_sync", {0}, calls(0.8, 0.82, 0.81)),
    ("large_images_scale", {0}, sizes(0.5, 0.5)),
    ("large_images_scale", {1}, sizes(0.9, 0.9)),
    ("nhwc_gain", {0}, switched(0.9, layout="nhwc")),
    ("nhwc_gain", {0}, switched(1.0, layout="nhwc")),
    ("dali_gain", {0}, switched(0.8, loader="dali")),
    ("lora_faster_and_smaller_than_dpo", {0}, techniques(lora=(2.2, 20.0))),
    ("lora_faster_and_smaller_than_dpo", {1}, techniques(lora=(1.0, 35.0))),
    ("qlora_smallest", {0, 1, 2}, techniques(qlora=(1.4, 80.0))),
    ("qlora_smallest", {3}, techniques(qlora=(0.8, 10.0))),
    ("qat_heaviest", {0, 1, 2}, techniques(qat_weights=(0.5, 70.0))),
    ("qat_heaviest", {3, 4, 5}, techniques(qat_weights=(3.0, 5.0))),
    ("mnist_accuracy", {0}, accuracy(0.97, 0.972, 0.971)),
]
# These can only be told with more repeats: one for each kind of test.
OPEN: dict[str, Experiment] = {
    "ddp_ds_scales": strategies(ddp_ds=0.75, scatter=SCATTERED),
    "pin_memory_gain": pinned(1.23, 1.2, SCATTERED),
    "llm_scaling_is_smaller": two_kinds(3.0, 3.0, SCATTERED),
    "llm_bound_by_launch_and_sync": calls(0.4, 0.5, 0.6),
    "qat_heaviest": techniques(SCATTERED, lora=(3.0, 20.0)),
    "mnist_accuracy": accuracy(0.97, 0.98, 0.99),
}
