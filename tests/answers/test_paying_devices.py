"""As many devices as pay: what is advised first where more devices are no faster, of runs with stated speeds."""

from pathlib import Path

import pytest

from factories import SCATTERED, STEADY, Row, make_results, strong_scaling_runs
from multicard.answers.answer import NEXT
from multicard.answers.choice.choices import choices
from multicard.answers.choice.paying_devices import fewer_devices
from multicard.answers.choice.recommend import advise

ONCE = (1.0,)


def runs(rates: dict[int, float], factors: tuple[float, ...] = STEADY, **columns: object) -> list[Row]:
    return [row for devices, rate in rates.items() for row in strong_scaling_runs(devices, rate, factors, **columns)]


def trials(folder: Path, rows: list[Row]) -> list[str]:
    [job] = advise(make_results(folder, rows)).jobs
    return [answer.sentence for answer in job.first_screen if answer.question == NEXT]


@pytest.mark.parametrize(
    ("rates", "paying"),
    [
        ({1: 100, 2: 50}, (1, 2)),
        ({1: 100, 2: 190, 4: 340}, None),
        ({1: 100, 2: 190, 4: 150}, (2, 4)),
        ({1: 100, 2: 190, 4: 190}, (2, 4)),
        ({1: 100, 2: 60, 4: 80}, (1, 4)),
        ({1: 100, 2: 60, 4: 180}, None),
        ({1: 100, 2: 104}, None),  # steady repeats show that two are faster
        ({1: 100}, None),
        ({2: 100, 4: 50}, None),  # without a run on one device speed-ups are not known
    ],
)
def test_as_many_devices_pay_as_are_faster_than_fewer(
    rates: dict[int, float], paying: tuple[int, int] | None, tmp_path: Path
) -> None:
    [job] = choices(make_results(tmp_path, runs(rates)))
    fewer = fewer_devices(job)
    assert (None if fewer is None else (fewer.devices, fewer.more_devices)) == paying


@pytest.mark.parametrize(("two", "is_advised"), [(50, True), (104, True), (106, False), (190, False)])
def test_a_single_repeat_shows_that_one_device_is_enough_unless_two_seem_faster(
    two: float, is_advised: bool, tmp_path: Path
) -> None:
    [job] = choices(make_results(tmp_path, runs({1: 100, 2: two}, ONCE)))
    assert (fewer_devices(job) is not None) == is_advised


def test_one_device_is_the_first_advice_and_what_else_may_help_says_where(tmp_path: Path) -> None:
    first, second = trials(tmp_path / "steady", runs({1: 95, 2: 50}, data_share=0.4))
    # 95 / 50 = 1.9.
    assert first.startswith("1 GPU: 1.900× as fast as 2 GPUs (95% CI 1.8") and first.endswith(", n=3)")
    assert second.startswith("on 2 GPUs: `raise num_workers` ")
    assert trials(tmp_path / "once", runs({1: 95, 2: 50}, ONCE))[0] == (
        "1 GPU: 1.90× as fast as 2 GPUs (n=1), one repeat, so it may be noise"
    )


def test_options_that_make_one_device_faster_too_do_not_follow_but_those_against_exchanging(tmp_path: Path) -> None:
    step = {"iteration_time_s": 0.1, "compute_or_communication_share": 0.98, "stalls_share": 0.02}
    script = {"workload": "script", "command": ["train.py"], "device": "cpu"}
    rows = [
        script | step | {"devices": devices, "throughput_samples_per_s": rate} for devices, rate in ((1, 300), (2, 100))
    ]
    first, second = trials(tmp_path, rows)
    assert first == "1 CPU process: 3.00× as fast as 2 CPU processes (n=1), one repeat, so it may be noise"
    assert second.startswith("on 2 CPU processes: another size of gradient buckets") and "compile" not in second
    assert second.endswith(
        "if the exchange of gradients takes the time, which runs without it show (`ablate: communication`)"
    )


def test_other_programs_that_took_cpus_are_told_beside_fewer_processes(tmp_path: Path) -> None:
    script = {"workload": "script", "command": ["train.py"], "device": "cpu", "iteration_time_s": 0.1}
    rows = [
        script | {"devices": devices, "throughput_samples_per_s": rate, "disturbance": disturbance}
        for devices, rate, disturbance in ((1, 300, None), (2, 100, "other processes: 1.3 CPUs"))
    ]
    assert trials(tmp_path, rows)[0].endswith(
        "it may be noise, while other programs took CPUs from them (other processes: 1.3 CPUs)"
    )


def test_another_training_for_which_two_devices_pay_is_what_may_make_them_worth_it(tmp_path: Path) -> None:
    def script(devices: int, batch: int, rate: float) -> Row:
        stated = {"workload": "script", "command": ["train.py", "{batch_size}"], "device": "cpu", "devices": devices}
        times = {"iteration_time_s": devices * batch / rate, "throughput_samples_per_s": rate}
        return stated | times | {"args": {"batch_size": batch}}

    # On two processes batches of 16 are 0.9 times as fast, those of 64 1.8 times.
    rows = [script(1, 16, 100), script(1, 64, 150), script(2, 16, 90), script(2, 64, 270)]
    first, second, *_ = trials(tmp_path, rows)
    assert first.startswith("1 CPU process: 1.11× as fast as 2 CPU processes (n=1)")
    assert second == (
        "on 2 CPU processes: batch_size: 16 → 64 (may change accuracy): 1.80× as fast as 1 CPU process with it (n=1)"
    )


def test_an_undecided_difference_is_told_as_such(tmp_path: Path) -> None:
    # One falls by as much as the other rises: ratios 0.5 × (0.64, 1, 1.5625), whose interval contains 1.
    slower = runs({1: 100}, SCATTERED) + runs({2: 50}, SCATTERED[::-1])
    first = trials(tmp_path / "slower", slower)[0]
    assert first == "1 GPU: whether 2 GPUs are faster is too scattered to tell (0.32× to 0.781× measured, n=3)"
    # As fast, by ratios of 0.9, 1 and 1.11: no gain by a second one, at twice the hours.
    equal = runs({1: 100}, (0.95, 1.0, 1.0 / 0.95)) + runs({2: 100}, (1.0 / 0.95, 1.0, 0.95))
    first = trials(tmp_path / "equal", equal)[0]
    assert first.startswith("1 GPU: 2 GPUs are not shown to be faster, 1.00× (95% CI 0.")
    assert first.endswith(", and take 2× the GPU-hours")
    # Half as fast again may well be a gain, which more repeats would show.
    open_ = runs({1: 100}, SCATTERED) + runs({2: 150}, SCATTERED[::-1])
    assert not any("as fast as" in sentence for sentence in trials(tmp_path / "open", open_))


def test_advice_about_the_number_of_devices_that_pays_needs_no_further_place(tmp_path: Path) -> None:
    first, second = trials(tmp_path, runs({1: 100, 2: 190, 4: 150}, data_share=0.4))
    assert first.startswith("2 GPUs: 1.267× as fast as 4 GPUs")  # 190 / 150
    assert second.startswith("`raise num_workers` ")
