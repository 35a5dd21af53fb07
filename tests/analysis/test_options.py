"""What is advised against a bottleneck: options that are possible, would change something, and were not measured."""

from pathlib import Path

from factories import make_results, tuning_runs, vision_runs
from multicard.analysis.bottlenecks.bottlenecks import NAMES, Bottleneck
from multicard.analysis.bottlenecks.options import options as all_options
from multicard.analysis.bottlenecks.options import untried
from multicard.experiment.config import PARAMETERS
from multicard.results.configuration import Configuration


def options(configuration: Configuration, kind: str, *others: Configuration) -> set[str]:
    """Names of what is advised."""
    found = untried(configuration, Bottleneck(kind, 0.5, ""), [configuration, *others])
    return {each.partition("`")[2].partition("`")[0] for each in found}


def test_packing_is_advised_against_padding_unless_it_was_measured(tmp_path: Path) -> None:
    padded, packed = make_results(
        tmp_path, tuning_runs(1.0, padding_share=0.5) + tuning_runs(0.5, packed=True)
    ).configurations()
    assert options(padded, "padding") == {"packed: true"}
    assert options(padded, "padding", packed) == options(packed, "padding") == set()
    two, one, tuned = make_results(
        tmp_path / "b",
        vision_runs(100, num_workers=2)
        + vision_runs(90, num_workers=1)
        + vision_runs(140, num_workers=2, preset="tuned"),
    ).configurations()
    assert "higher num_workers" in options(two, "data loading", one), "fewer were measured"
    assert "higher num_workers" not in options(one, "data loading", two)
    assert "preset: tuned" not in options(two, "compute", tuned)  # although it sets several options


def test_what_is_impossible_or_changes_nothing_is_not_advised(tmp_path: Path) -> None:
    rows = vision_runs(100, strategy="fsdp", devices=2) + vision_runs(100, strategy="single", device="cpu")
    fsdp, cpu = make_results(tmp_path / "a", rows).configurations()
    assert "preset: tuned" in options(fsdp, "compute", cpu) and "layout: nhwc" not in options(fsdp, "compute", cpu)
    assert not options(cpu, "memory operations", fsdp)
    assert "cuda_graphs: true" not in options(fsdp, "launch overhead", cpu)
    [several] = make_results(tmp_path / "b", vision_runs(100, strategy="ddp-ds", devices=8, nodes=2)).configurations()
    assert "layout: nhwc" in options(several, "compute")
    for device, nodes in (("cpu", (0, 1)), ("cuda", (0,)), ("cuda", (0, 1)), ("cuda", ())):
        rows = vision_runs(100, device=device, data_share=0.5, devices=2)
        [bound] = make_results(tmp_path / f"{device} {len(nodes)}", rows, nodes=nodes).configurations()
        # Unknown nodes may be several where there are GPUs.
        is_advised = device == "cuda" and len(nodes) != 1
        assert ("binding: numa" in options(bound, "data loading")) is is_advised


def test_options_name_parameters_and_each_bottleneck_has_some() -> None:
    parameters, programs = all_options()
    assert {name for of in parameters.values() for option in of for name in option.changes} <= set(PARAMETERS)
    assert set(parameters) < set(programs) == set(NAMES)
    assert all(programs.values())
