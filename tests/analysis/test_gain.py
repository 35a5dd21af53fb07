"""What each number of devices gains, in a line: of synthetic runs whose ratios follow by hand."""

from pathlib import Path

from analysis.synthetic_results import Row, images, made
from multicard.analysis.scaling.gain import gains

FALLING, RISING, ONCE = (1.1, 1.0, 0.9), (0.9, 1.0, 1.1), (1.0,)


def lines(folder: Path, *runs: list[Row]) -> list[str]:
    return gains(made(folder, [row for each in runs for row in each]))


def test_several_devices_are_compared_with_one_and_the_bottleneck_follows(tmp_path: Path) -> None:
    one, two = images(100, FALLING, data_share=0.02), images(200, RISING, devices=2, data_share=0.4)
    # The ratios of the blocks are 2 × (9/11, 1, 11/9): a t interval of two degrees of freedom around 2.
    two = [row | {"iteration_time_s": 0.05} for row in two]
    assert lines(tmp_path, one, two) == [
        "1 GPU: mostly compute (98% of the step); largest other cost data loading (2.0%)",
        "2 GPUs: speed-up 2.00 (95% CI 1.21 to 3.29, n=3); mostly compute or communication (60% of the step); "
        "largest other cost data loading (40%, 20.0 ms)",
    ]


def test_several_configurations_have_a_range_and_the_parts_of_their_steps(tmp_path: Path) -> None:
    rows = [
        images(speed, ONCE, image_size=size, devices=devices, data_share=share)
        for size, devices, speed, share in (
            (224, 1, 100, 0.1),
            (224, 2, 80, 0.6),
            (512, 1, 10, 0.01),
            (512, 2, 15, 0.07),
        )
    ]
    one, two = lines(tmp_path, *rows)
    assert one == (
        "1 GPU: 2 of 2 configurations: mostly compute (90–99% of the step); largest other cost data loading (1–10%)"
    )
    assert two.startswith("2 GPUs: speed-up 0.8 to 1.5; one repeat, so a difference may be noise; ")
    assert "1 of 2 configurations: mostly data loading (60% of the step)" in two
    assert "1 of 2 configurations: mostly compute or communication (93% of the step)" in two


def test_what_repeats_do_not_decide_is_no_difference(tmp_path: Path) -> None:
    same = images(100, FALLING), images(100, RISING, devices=2)
    assert lines(tmp_path / "a", *same) == ["2 GPUs: speed-up 1.00 (95% CI 0.61 to 1.65, n=3); inconclusive"]
    faster = images(10, image_size=512), images(20, image_size=512, devices=2)
    assert lines(tmp_path / "b", *same, *faster) == ["2 GPUs: speed-up 1 to 2; inconclusive (1 of 2 configurations)"]


def test_nothing_is_said_of_what_is_not_known(tmp_path: Path) -> None:
    lost = images(0, ONCE, devices=4, outcome="out_of_memory")
    assert lines(tmp_path, images(100, devices=2), lost) == []
