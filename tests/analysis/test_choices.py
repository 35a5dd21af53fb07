"""Trainings of synthetic jobs whose time, hours, energy and cost follow from their rates by hand."""

import json
from pathlib import Path
from typing import Any

import pytest
from synthetic_results import (
    GPU,
    OTHERWISE,
    SCATTERED,
    STEADY,
    Row,
    images,
    made,
    make_results,
    repeated,
    texts,
    with_provenance,
)

from multicard.analysis.choice.choices import Choice, choices
from multicard.analysis.choice.demand import Demand
from multicard.analysis.choice.recommend import as_markdown
from multicard.analysis.choice.table import as_table
from multicard.analysis.evidence import Evidence, read_evidence
from multicard.cli import main
from multicard.cli._command import duration_s, memory_bytes
from multicard.core.errors import UserError
from multicard.core.files import write_json
from multicard.core.text import without_escapes

PASS = 10_000  # images
RATES = {1: 100.0, 2: 190.0, 4: 340.0}  # images per second on so many GPUs


def trained(devices: int, rate: float, factors: tuple[float, ...] = STEADY, **others: Any) -> list[Row]:
    """Repeats of a job with a batch of 64 for all GPUs."""
    stated = {"scaling": "strong", "batch_size": 64, "estimated_epoch_time_s": PASS / rate, "elapsed_s": 50.0}
    return images(rate, factors, devices=devices, **stated | others)


def scaled_runs(**others: Any) -> list[Row]:
    return [row for devices, rate in RATES.items() for row in trained(devices, rate, **others)]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A job on one to four GPUs."""
    return make_results(tmp_path_factory.mktemp("made"), scaled_runs())


@pytest.fixture(scope="module")
def scaled(results: Path) -> Evidence:
    return read_evidence(results)


def trainings(evidence: Evidence, **demand: float) -> dict[int, Choice]:
    [job] = choices(evidence, Demand(**demand))
    return {each.devices: each for each in job.rows}


def answered(evidence: Evidence, **demand: float) -> str:
    return without_escapes(as_markdown(evidence, Demand(**demand)))


def test_time_and_hours_follow_from_the_rates(scaled: Evidence) -> None:
    found = trainings(scaled, epochs=20)
    # 200,000 images at 100, 190 and 340 per second.
    assert {n: each.time_s.value for n, each in found.items()} == {
        1: pytest.approx(2000, rel=1e-4), 2: pytest.approx(1052.63, rel=1e-4), 4: pytest.approx(588.235, rel=1e-4),
    }  # fmt: skip
    assert found[4].device_hours == pytest.approx(4 * 588.235 / 3600, rel=1e-4)
    # Logarithms of 0.997, 1 and 1.003 have a deviation of 0.003, and a mean of three reaches 4.303 / √3 of it.
    assert found[1].time_s.high == pytest.approx(2000 * (1 + 0.003 * 4.303 / 3**0.5), rel=1e-4)
    assert all(each.is_best for each in found.values())


def test_repeats_that_did_not_complete_and_doubts_are_told(tmp_path: Path) -> None:
    rows = trained(1, 100, disturbance="other processes: 1.6 CPUs") + trained(2, 190)
    rows[-1]["outcome"] = "out_of_memory"
    text = answered(made(tmp_path, rows), deadline_s=1200)
    assert "meets the deadline; 2 of 3 runs completed |" in text
    assert "How sure: 2 to 3 repeats of each configuration; disturbed in 3 of 5 runs" in text


def test_what_never_completed_is_named_with_its_reason(tmp_path: Path) -> None:
    rows = trained(1, 100) + trained(2, 190, steps_per_epoch=90) + trained(2, 190, (1.0, 1.0))
    rows += trained(4, 340, batch_size=128)
    for row in (*rows[6:8], *rows[8:]):
        row["outcome"] = "out_of_memory"
    rows[8]["outcome"] = "failed"
    evidence = made(tmp_path, rows)
    text = answered(evidence)
    # Two GPUs completed, with another number of steps.
    assert text.count("Excluded, since no run of them completed:") == 1 == text.count("- mnist, 224 px")
    why = "failed in 1 of 3 runs, out of memory in 2 of 3 runs"
    assert "4 GPUs" in text and why in text
    demand = Demand(max_memory_bytes=1e9)
    table = as_table(choices(evidence, demand), demand).set_index("devices")
    assert table.loc[4, ["refused", "repeats"]].tolist() == [why, 0]
    assert len(table) == 3 and table["time_s"].isna().tolist() == [False, False, True]


def test_what_ended_before_a_rank_left_a_record_is_named(tmp_path: Path) -> None:
    lost = [row | {"outcome": "out_of_memory"} for row in trained(4, 340)]
    evidence = made(tmp_path, trained(1, 100) + lost)
    for script in ({}, {"script": {"file": "train.py", "sha256": "0a1b2c" * 10}}):
        for run in evidence.runs:
            path = tmp_path / "runs" / run.run / "run.json"
            record = json.loads(path.read_text(encoding="utf-8"))
            if run.values["devices"] == 4:  # SIGKILL leaves neither hardware nor versions
                record |= {"hardware": None, "versions": None, "data": None, "ranks": []}
            write_json(path, record | script)
        text = answered(read_evidence(tmp_path))
        assert "Excluded, since no run of them completed:" in text and "4 GPUs" in text


def test_a_run_of_another_length_counts_whichever_profiler_observed_it(tmp_path: Path) -> None:
    # The short runs have more repeats, so the speed is theirs; only the long ones were tested.
    evidence = made(tmp_path, trained(1, 100, steps_per_epoch=90) + trained(1, 100, (1.0, 1.0), test_accuracy=0.99))
    evidence = with_provenance(
        evidence,
        versions=lambda run: f"torch 2.11.0, profiler {'none' if run.number('test_accuracy') else 'nsys'}",
    )
    found = trainings(evidence, min_accuracy=0.98)[1]
    assert (found.quality, found.refused) == (0.99, None)


def test_one_repeat_says_that_its_interval_is_unknown(tmp_path: Path) -> None:
    evidence = made(tmp_path, trained(1, 100, (1.0,)) + trained(2, 190, (1.0,)))
    text = answered(evidence, deadline_s=120, epochs=1)
    assert "1 GPU in time (1 min 40 s [n=1], " in text
    assert "2 GPUs in time (52.6 s [n=1], " in text
    assert text.count("| meets the deadline by one repeat |") == 2


def test_versions_are_never_taken_together(tmp_path: Path) -> None:
    evidence = made(tmp_path, scaled_runs() + scaled_runs(profiled_steps=3))
    second = {run.run for run in evidence.runs[9:]}
    same, other = (
        with_provenance(
            evidence,
            versions=lambda run, torch=torch: (
                f"torch {torch}, profiler none" if run.run in second else "torch 2.11.0, profiler nsys"
            ),
        )
        for torch in ("2.11.0", "2.10.0")
    )
    [job] = choices(same, Demand())  # who observes is no choice
    assert len(job.rows) == 3
    assert [len(job.rows) for job in choices(other, Demand())] == [3, 3]
    heads = [line for line in answered(other).splitlines() if line.startswith("## mnist")]
    assert [head.split(", on ")[1] for head in heads] == ["torch 2.10.0", "torch 2.11.0"]


def test_a_deadline_is_answered_in_words(scaled: Evidence) -> None:
    text = answered(scaled, deadline_s=1200, gpu_hour_cost=2.5, epochs=20)
    # 2 × 1052.63 s are 0.585 hours; 4 × 588.2 s are 11.8% more of them.
    assert (
        "for a deadline of 20 min: 2 GPUs in time (17 min 33 s [95% CI 17 min 25 s to 17 min 41 s, n=3], "
        "0.585 GPU-hours, cost 1.46); 4 GPUs in time (9 min 48 s [95% CI 9 min 44 s to 9 min 53 s, n=3], 0.654 "
        "GPU-hours, cost 1.63); 1 GPU too late (33 min 20 s [95% CI 33 min 5 s to 33 min 35 s, n=3], 0.556 GPU-hours, "
        "cost 1.39)\n"
    ) in text
    for said in ("200,000 images (20 epochs of 10,000)", "up to 40.1 times as long"):
        assert said in text
    none = answered(scaled, deadline_s=60, epochs=20)
    assert (
        "for a deadline of 1 min: none is sure; 4 GPUs too late (9 min 48 s" in none
        and "`multicard recommend --devices 8`" in none
    )
    # Without a deadline each number is named, the fastest first.
    text = answered(scaled, epochs=20)
    assert "The training: 4 GPUs (9 min 48 s" in text and "; 1 GPU (33 min 20 s" in text


def test_predictions_are_of_what_changes_nothing_and_of_more_than_was_measured(tmp_path: Path) -> None:
    rows = scaled_runs() + trained(8, 500, precision="bf16") + trained(2, 250, precision="bf16")
    text = answered(made(tmp_path, rows), deadline_s=1, epochs=20)
    lines = [line for line in text.splitlines() if line.startswith("- Deadline")]
    assert ["--devices 16`" in line for line in lines] == [True, False] and "if you may change" in lines[1]


def test_jobs_that_see_only_their_own_gpus_are_of_one_machine(scaled: Evidence) -> None:
    # As under Slurm, where each record has as many GPUs as the job was given.
    place = "{} × NVIDIA {}, AMD EPYC 9334, 128 CPUs"
    alike = with_provenance(scaled, machine=lambda run: place.format(run.values["devices"], "H100"))
    assert list(trainings(alike)) == [1, 2, 4]
    other = with_provenance(scaled, machine=lambda run: place.format(1, "A100" if run is scaled.runs[0] else "H100"))
    assert len(choices(other)) == 2


def test_a_repeat_that_diverged_reached_nothing(tmp_path: Path) -> None:
    rows = trained(1, 100, test_accuracy=0.99) + trained(2, 190, test_accuracy=0.995)
    rows[-1]["outcome"] = "diverged"
    evidence = made(tmp_path, rows)
    found = trainings(evidence, min_accuracy=0.98)
    assert (found[1].refused, found[2].refused) == (None, "diverged in 1 of 3 runs")
    assert trainings(evidence)[2].refused is None
    # Of several seeds the worst counts.
    seeds = [
        row
        for seed, accuracy in enumerate((0.985, 0.97, 0.99))
        for row in trained(1, 100, (1.0, 1.0), seed=seed, test_accuracy=accuracy)
    ]
    assert trainings(made(tmp_path / "seeds", seeds), min_accuracy=0.98)[1].refused == "accuracy 0.97"


def test_a_length_is_stated_in_samples_or_passes(scaled: Evidence) -> None:
    assert trainings(scaled, samples=5000)[1].time_s.value == pytest.approx(50, rel=1e-4)
    assert trainings(scaled)[1].time_s.value == pytest.approx(20 * PASS / 100, rel=1e-4)  # the default of epochs is 20
    with pytest.raises(UserError, match="samples and epochs: found both"):
        Demand(samples=1, epochs=1)


def test_a_spread_around_the_deadline_may_miss_it(tmp_path: Path) -> None:
    evidence = made(tmp_path, trained(1, 100, SCATTERED) + trained(2, 190))
    # Repeats of 80 to 125 images per second: 10,000 take 80 to 125 s.
    found = trainings(evidence, epochs=1)
    assert [found[1].deadline(limit) for limit in (50, 110, 200)] == ["missed", "may miss", "met"]
    text = answered(evidence, deadline_s=110, epochs=1)
    assert "2 GPUs in time (52.6 s" in text and "1 GPU may miss it (1 min 40 s" in text
    alone = made(tmp_path / "alone", trained(1, 100, SCATTERED))
    assert "none is sure; 1 GPU may miss it (1 min 40 s [" in answered(alone, deadline_s=110, epochs=1)
    # Another one that may meet it is named.
    rows = trained(1, 100) + trained(1, 95, SCATTERED, num_workers=1)
    text = answered(made(tmp_path / "other", rows), deadline_s=95, epochs=1)
    assert "1 GPU with num_workers: 1, or 1 other that may be as good may miss it (1 min 45 s [" in text


def test_only_what_is_shown_to_be_worse_is_called_worse(tmp_path: Path) -> None:
    rows = trained(2, 100) + trained(2, 60, num_workers=1) + trained(2, 99, OTHERWISE, num_workers=2)
    rows += trained(2, 50, (1.0,), num_workers=3) + trained(1, 120, num_workers=4)
    [job] = choices(made(tmp_path, rows), Demand())
    worse = {(each.devices, each.configuration["num_workers"]): each.is_worse for each in job.rows}
    # A single repeat shows nothing.
    assert worse == {(1, 4): False, (2, 0): False, (2, 1): True, (2, 2): False, (2, 3): False}
    rows = trained(2, 100) + trained(2, 99, OTHERWISE, num_workers=2)
    text = answered(made(tmp_path / "two", rows), epochs=1)
    assert "2 GPUs with num_workers: 0, or 1 other that may be as good (1 min 40 s" in text
    assert "fastest of 2 on 2 GPUs: num_workers: 0, 100.0 images per second" in text
    assert "not significantly worse: num_workers: 2, 0.990× as fast (95% CI" in text


def test_the_best_is_that_for_the_goal(tmp_path: Path) -> None:
    def metered(rate: float, joules: float, workers: int) -> list[Row]:
        meter = {"energy_per_sample_j": joules, "processed_samples_per_s": rate}
        return trained(1, rate, num_workers=workers, **meter)

    evidence = made(tmp_path, metered(100, 2.0, 0) + metered(90, 1.0, 1) + metered(80, 2.5, 2))
    for goal, best, ratios in (("throughput", 0, {1: 0.9, 2: 0.8}), ("energy", 1, {0: 2.0, 2: 2.5})):
        [job] = choices(evidence, Demand(samples=10, goal=goal))
        rows = {each.configuration["num_workers"]: each for each in job.rows}
        assert rows[best].is_best and all(rows[other].is_worse for other in ratios)
        assert {other: rows[other].ratio.value for other in ratios} == pytest.approx(ratios, rel=1e-4)
    assert [each.energy_j for each in job.rows] == pytest.approx([20, 10, 25], rel=1e-4)


def test_precision_and_batch_are_never_traded_silently(tmp_path: Path) -> None:
    rows = scaled_runs() + trained(2, 400, precision="bf16") + trained(2, 500, batch_size=128)
    evidence = made(tmp_path, rows)
    text = answered(evidence, deadline_s=1200, epochs=20)
    first, *others = [line for line in text.splitlines() if line.startswith("- Deadline: ")]
    assert first.startswith(
        "- Deadline: with global batch size: 64, precision: fp32: for a deadline of 20 min: 2 GPUs in"
    )
    assert {line.partition(": for ")[0] for line in others} == {
        "- Deadline: if you may change global batch size: 64 → 128",
        "- Deadline: if you may change precision: fp32 → bf16",
    }
    # 500 and 400 images per second in place of 190.
    assert "- If you may change: global batch size: 64 → 128: 2.63× as fast (95% CI" in text
    assert "; precision: fp32 → bf16: 2.11× as fast (95% CI" in text
    [job] = choices(evidence, Demand())
    assert not any(each.is_worse for each in job.rows)  # none is worse than one that learns otherwise


def test_a_batch_that_grows_with_the_devices_is_another_choice(tmp_path: Path) -> None:
    rows = [row for n, rate in RATES.items() for row in trained(n, rate, scaling="weak")]
    text = answered(made(tmp_path, rows), deadline_s=1200, epochs=20)
    assert "with global batch size: 64: for a deadline of 20 min: none is sure; 1 GPU too late" in text
    assert "if you may change global batch size: 64 → 128: for a deadline of 20 min: 2 GPUs" in text
    assert "Try next: devices: [1, 2, 4], strategy: ddp-ds, batch_size: 64, scaling: strong, the same on" in text
    # How much faster more of them are is known nevertheless, by their throughput.
    assert "How many devices: 4 GPUs (weak scaling): 3.40× as fast as 1 GPU" in text and "1.18× the GPU-hours" in text


def test_only_what_reached_the_floor_after_as_many_samples_counts(tmp_path: Path) -> None:
    for accuracy, epochs, refused in (
        (0.99, 10, None),  # what is reached early is reached
        (0.97, 20, "accuracy 0.97"),
        (0.97, 1, "accuracy 0.97 after 5.0% of the samples"),
        (0.99, 40, "accuracy recorded only after 2 times the samples"),
        (None, 20, "accuracy not recorded"),
    ):
        reached = {} if accuracy is None else {"test_accuracy": accuracy}
        rows = trained(1, 100, (1.0, 1.0), epochs=epochs, **reached) + trained(2, 190, (1.0, 1.0), test_accuracy=0.99)
        found = trainings(made(tmp_path / f"{accuracy} {epochs}", rows), min_accuracy=0.98, epochs=20)
        assert found[1].refused == refused and found[2].refused is None
        assert found[1].unknown is (refused not in (None, "accuracy 0.97"))


def test_a_loss_is_a_ceiling_and_the_worst_repeat_counts(tmp_path: Path) -> None:
    found = trainings(made(tmp_path, trained(1, 100, test_loss=0.5) + trained(2, 190, test_loss=0.498)), max_loss=0.5)
    # The worst repeats: 0.5 and 0.498, 0.3% more.
    assert (found[1].refused, found[2].refused) == ("loss 0.501", None)


def test_memory_beyond_the_limit_or_not_recorded_does_not_count(tmp_path: Path) -> None:
    rows = trained(1, 100, peak_memory_bytes=90e9) + trained(2, 190, peak_memory_bytes=50e9) + trained(4, 340)
    evidence = made(tmp_path, rows)
    # The worst repeat needs 0.3% more.
    found = trainings(evidence, max_memory_bytes=80e9)
    assert {n: (each.refused, each.unknown) for n, each in found.items()} == {
        1: ("needs 90.3 GB of memory", False), 2: (None, False), 4: ("memory not recorded", True),
    }  # fmt: skip
    assert "excluded: needs 90.3 GB of memory" in answered(evidence, max_memory_bytes=80e9)
    text = answered(made(tmp_path / "two", rows[:6]), max_memory_bytes=40e9)
    assert "none meets what is asked: on 1 GPU: needs 90.3 GB of memory; on 2 GPUs: needs 50.1 GB of memory" in text


def test_tokens_are_the_work_of_language_models(tmp_path: Path) -> None:
    rows = [
        row | {"estimated_epoch_time_s": 500 / row["tokens_per_s"], "loss_at_end": 2.0, "tokens_per_step": 4.0}
        for row in texts(0.5, (1.0, 1.0), steps=115) + texts(0.5, (1.0, 1.0), steps=115, technique="full")
    ]
    [job] = choices(made(tmp_path, rows), Demand(max_loss=2.1))
    assert (job.unit, job.work) == ("token", pytest.approx(500))
    # 5 + 115 + 5 steps of 4 tokens: as many as the pass has.
    assert [each.refused for each in job.rows] == [None, None]
    assert job.rows[1].changes["technique"] == ("lora", "full")


def test_measured_batches_that_differ_by_a_last_one_are_equal(tmp_path: Path) -> None:
    def script(devices: int, batch: float, rate: float) -> list[Row]:
        row = {"workload": "script", "command": ["train.py", "{b}"], "args": {"b": 64}, "device": "cuda"}
        times = {"iteration_time_s": batch / rate, "throughput_samples_per_s": rate, "steps_per_s": rate / batch}
        return repeated(row | {"devices": devices} | times, (1.0, 1.0))

    [job] = choices(
        made(tmp_path, script(1, 64, 100) + script(2, 63.2, 190) + script(4, 128, 300)), Demand(samples=1e4)
    )
    assert [each.learning["global batch size"] for each in job.rows] == [64, 64, 128]
    unknown = made(tmp_path / "b", script(1, 64, 100))
    assert "no answer: the length of the training in samples was not recorded" in answered(unknown, deadline_s=60)


def test_processes_and_synthetic_runs_are_said_to_be_such(tmp_path: Path) -> None:
    text = answered(made(tmp_path / "a", scaled_runs(device="cpu"), gpu=None), deadline_s=1200, gpu_hour_cost=2.5)
    for said in ("say nothing about GPUs", "20 min: 2 CPU processes in time ("):
        assert said in text
    assert "GPU-hours" not in text and "cost" not in text.lower()  # of which processes have none
    text = answered(made(tmp_path / "b", scaled_runs(), gpu=GPU | {"name": "synthetic GPU"}), deadline_s=1200)
    assert "All runs have synthetic timings: no machine takes these times." in text


def test_one_number_of_devices_says_what_to_run(tmp_path: Path) -> None:
    for strategy, devices, scaling, missing in (
        ("single", 1, "weak", "strategy: ddp-ds, batch_size: 64, scaling: strong"),
        ("ddp-ds", 4, "weak", "strategy: ddp-ds, batch_size: 256, scaling: strong"),
        ("dp", 4, "strong", "strategy: dp, batch_size: 64, scaling: strong"),
        # Ranks without a distributed sampler train on the same samples, so 32 of 64 are distinct.
        ("ddp", 2, "strong", "strategy: ddp, batch_size: 32, scaling: weak"),
    ):
        rows = trained(devices, 100, precision="bf16", strategy=strategy, scaling=scaling)
        text = answered(made(tmp_path / strategy, rows), deadline_s=1200)
        assert f"not known: only {devices} GPU" in text and f"Try next: devices: [1, 2, 4], {missing}, the same" in text


def test_durations_and_sizes_are_read() -> None:
    for text, seconds in (("90m", 5400), ("2h30min", 9000), ("45s", 45), ("1d12h", 129600), ("1.5h", 5400)):
        assert duration_s("--deadline", text) == seconds
    assert memory_bytes("--max-memory", "80GB") == 80e9
    assert memory_bytes("--max-memory", "1.5GiB") == 1.5 * 2**30


def test_a_faulty_demand_is_one_line(results: Path) -> None:
    for option, value, expected in (
        ("--deadline", "6", "a duration such as 6h"),
        ("--deadline", "30m2h", "a duration"),
        ("--deadline", "0h", "a duration"),
        ("--max-memory", "80", "a size such as 80GB"),
        ("--max-memory", "0GB", "a size"),
        ("--min-accuracy", "98", "a share above 0 and up to 1"),
        ("--max-loss", "nan", "a number above 0"),
        ("--samples", "many", "a number such as 1.2e6"),
        ("--samples", "1e+300", "a number above 0, up to 1e18"),
    ):
        with pytest.raises(SystemExit) as stopped:
            main(["recommend", str(results), f"{option}={value}"])
        [line] = str(stopped.value).splitlines()
        assert line.replace("'", "").startswith(f"{option}: found {value}, expected {expected}")


def test_the_command_answers_first_and_as_json(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    demand = ["--deadline", "20m", "--gpu-hour-cost", "2.5", "--max-memory", "80GB", "--samples", "20epochs"]
    main(["recommend", str(results), "--goal", "throughput", "--deadline", "20m"])
    printed = capsys.readouterr().out
    assert printed.index("for a deadline of 20 min: 2 GPUs in time") < printed.index("How many devices: 4 GPUs: 3.40×")
    assert "| Devices |" not in printed and len(printed.splitlines()) <= 25
    main(["recommend", str(results), "--verbose", "--deadline", "20m"])
    assert "| Devices | Time | Speed-up |" in capsys.readouterr().out
    main(["recommend", str(results), "--json", *demand])
    rows = json.loads(capsys.readouterr().out)["configurations"]
    assert [(row["devices"], row["deadline"], row["refused"]) for row in rows] == [
        (1, "missed", "memory not recorded"), (2, "met", "memory not recorded"), (4, "met", "memory not recorded"),
    ]  # fmt: skip
    assert rows[1]["cost"] == pytest.approx(2.5 * 2 * 1052.63 / 3600, rel=1e-4)
