"""A results folder made by hand, with synthetic numbers: what a report is written from."""

import base64
from pathlib import Path
from typing import Any

import pandas as pd

from factories import make_run, write_run
from multicard.report.results import ScenarioPlan
from multicard.results.measure import MEASURES_OF
from multicard.runs.parameters import as_columns
from multicard.runs.record import RunRecord

HOSTILE = "<script>document.title='taken'</script>\"'><img src=x onerror=\"document.title='taken'\">&amp;"
QUESTION = f"Does a second process help? {HOSTILE}"
REASON = f"needs 8 GPUs, this machine has 0 {HOSTILE}"

PLANS = {
    "processes": ScenarioPlan(QUESTION, ("iteration_time", "step_times", "step_breakdown")),
    "techniques": ScenarioPlan("What does each technique cost?", ("techniques",)),
    "gpus": ScenarioPlan("Do eight GPUs help?", ("speedup",)),
}

# A white pixel.
PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8/5+hHgAHggJ/PchI7wAAAABJRU5ErkJggg=="
)
SVG = (
    '<svg xmlns="http://www.w3.org/2000/svg" width="200" height="80"><script>parent.document.title="taken"</script>'
    '<image href="http://example.org/a.png"/><rect width="150" height="40" fill="#0173b2"/></svg>'
)

RUNS = [  # name, scenario, outcome, reason, devices, iteration time in seconds
    ("vision_digits_32px_ddp-ds_cpu1_fp32_r1", "processes", "completed", "", 1, 0.100),
    ("vision_digits_32px_ddp-ds_cpu1_fp32_r2", "processes", "completed", "", 1, 0.120),
    ("vision_digits_32px_ddp-ds_cpu2_fp32_r1", "processes", "completed", "", 2, 0.080),
    ("vision_digits_32px_ddp-ds_cpu2_fp32_r2", "processes", "out_of_memory", f"killed {HOSTILE}", 2, None),
    ("llm_tiny_lora_chats_cpu1_bf16_r1", "techniques", "completed", "", 1, 1.5),
    ("llm_tiny_dpo_chats_cpu1_bf16_r1", "techniques", "completed", "", 1, 10.25),
    ("vision_digits_32px_ddp-ds_cuda8_fp32_r1", "gpus", "not run", REASON, 8, None),
]

VISION = {"workload": "vision", "dataset": "digits", "image_size": 32, "strategy": "ddp-ds"}
TUNING = {"workload": "llm", "dataset": "chats", "model": "tiny", "device": "cpu"}
_STATED = (
    *(VISION | {"device": "cpu", "devices": devices, "repeat": repeat} for devices in (1, 2) for repeat in (1, 2)),
    *(TUNING | {"technique": technique} for technique in ("lora", "dpo")),
    VISION | {"device": "cuda", "devices": 8},
)
PARAMETERS = {name: stated for (name, *_), stated in zip(RUNS, _STATED, strict=True)}
HARDWARE = {"processor": "A processor", "logical_cpus": 4, "usable_cpus": 2, "memory_bytes": 8_000_000_000, "gpus": []}


def record(run: str, outcome: str = "completed", reason: str = "", **changes: Any) -> RunRecord:
    """The record of one of `RUNS`, on one machine."""
    return make_run(
        PARAMETERS[run],
        **{
            "outcome": outcome,
            "reason": {"code": outcome, "message": reason} if reason else None,
            "started": "2026-01-02T03:04:05.000+00:00",
            "ended": "2026-01-02T03:05:05.000+00:00",
            "wall_time_s": 60.0,
            "profiler": {"used": "nsys", "why": f"nsys is on the PATH {HOSTILE}"},
            "host": {"name": HOSTILE, "system": "Linux"},
            "hardware": HARDWARE,
            "versions": {"multicard": "0.1.0", "python": "3.11.2", "torch": "2.11.0", "cuda": None},
            "data": {
                "dataset": HOSTILE,
                "source": "synthetic",
                "files": [{"name": "a.npz", "bytes": 1, "sha256": "0" * 64}],
            },
        }
        | changes,
    )


def results(folder: Path) -> Path:
    """Write the folder."""
    runs = pd.DataFrame(RUNS, columns=["run", "scenario", "outcome", "reason", "devices", "iteration_time_s"])
    for scenario in PLANS:
        place = folder / "scenarios" / scenario
        place.mkdir(parents=True)
        mine = runs[runs["scenario"] == scenario]
        ran = mine[mine["outcome"] != "not run"]
        table = mine[["run", "outcome", "reason"]].assign(started="", wall_time_s="")
        table.loc[ran.index, ["started", "wall_time_s"]] = ["2026-01-02T03:04:05.000+00:00", "60.0"]
        table.to_csv(place / "runs.csv", index=False)
        parameters = [as_columns(record(run).parameters.model_dump()) for run in ran["run"]]
        measures = ran[["run", "outcome", "reason", "iteration_time_s"]].reset_index(drop=True)
        measures = measures.join(pd.DataFrame(parameters, columns=list(parameters[0]) if parameters else ["workload"]))
        others = [
            name for workload in set(measures["workload"]) for name in MEASURES_OF[workload] if name not in measures
        ]
        measures.assign(**dict.fromkeys(others)).to_csv(place / "measures.csv", index=False)
        for _, row in ran.iterrows():
            write_run(folder / "runs", record(row["run"], row["outcome"], row["reason"]))
    _figure(folder, "processes", "iteration_time", lines(), svg=True)
    _figure(folder, "processes", "step_times", lines())
    _figure(folder, "processes", "step_breakdown", pd.DataFrame({"nothing_to_show": ["no phases were recorded"]}))
    _figure(folder, "techniques", "techniques", bars(), svg=True)
    return folder


def lines() -> pd.DataFrame:
    """Two series on one and two devices; one of them is named by an enemy."""
    return pd.DataFrame(
        {
            "series": ["ddp-ds", "ddp-ds", HOSTILE, HOSTILE],
            "device": "cpu",
            "devices": [1, 2, 1, 2],
            "repeats": [2, 1, 2, 2],
            "iteration_time_s": [0.11, 0.08, 0.2, 0.3],
            "iteration_time_s_low": [0.10, None, 0.18, 0.29],
            "iteration_time_s_high": [0.12, None, 0.25, 0.31],
        }
    )


def bars() -> pd.DataFrame:
    """Two techniques, one of which did not complete on two processes."""
    table = pd.DataFrame(
        {
            "series": ["1 CPU process", "1 CPU process", "2 CPU processes", "2 CPU processes"],
            "technique": ["lora", "dpo", "lora", "dpo"],
            "devices": [1, 1, 2, 2],
            "batch_size": 4,
            "outcome": ["completed", "completed", "completed", "out_of_memory"],
            "repeats": [1, 1, 1, 0],
            "iteration_time_s": [1.5, 10.25, 2.0, None],
            "peak_memory_bytes": [9e8, 1e9, 1.1e9, None],
        }
    )
    measures = ("iteration_time_s", "peak_memory_bytes")
    return table.assign(**{f"{name}_{end}": table[name] for name in measures for end in ("low", "high")})


CLAIMS = pd.DataFrame(
    [
        ("dali_gain", "confirmed", "DALI beats the DataLoader.", "It is slower.", "yes", "B"),
        ("qlora_smallest", "refuted", f"QLoRA is the smallest. {HOSTILE}", f"It needs more. {HOSTILE}", "yes", "B"),
        ("pin_memory_gain", "not measured here", "Pinned memory gains.", "It gains nothing.", "no: not on GPUs", "A"),
    ],
    columns=["claim", "verdict", "claim_text", "refuted_if", "can_be_judged", "paper"],
).assign(finding=["1.2 [1.1, 1.3]", "0.9 [0.8, 0.95]", ""])
CLAIM_TESTS = CLAIMS[["claim", "verdict"]].assign(
    test=["It is faster.", f"It needs less. {HOSTILE}", "It gains."],
    finding=[
        "Confirmed: 1.2 (95% CI 1.1 to 1.3, n=3)",
        "Refuted: 0.9",
        f"Not judged: there are no runs {HOSTILE}",
    ],
    refuted_if="The interval is wholly below 1.",
)


def judged(folder: Path) -> Path:
    """Add what the claims say."""
    CLAIMS.to_csv(folder / "claims.csv", index=False)
    CLAIM_TESTS.to_csv(folder / "claims_tests.csv", index=False)
    return folder


def _figure(folder: Path, scenario: str, name: str, data: pd.DataFrame, svg: bool = False) -> None:
    place = folder / "figures" / scenario
    place.mkdir(parents=True, exist_ok=True)
    data.to_csv(place / f"{name}.csv", index=False)
    (place / f"{name}.png").write_bytes(PNG)
    if svg:
        (place / f"{name}.svg").write_text(SVG)
