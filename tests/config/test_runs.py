"""Scenarios expand into runs whose ids depend on the run alone."""

from typing import Any

import pytest

from multicard.config.load import check
from multicard.config.runs import expand
from multicard.programs import parameters_of
from multicard.programs.llm.parameters import LlmParameters
from multicard.programs.vision.parameters import VisionParameters
from multicard.runs.parameters import LONGEST_ID, JobParameters, run_id


def ids(keys: dict[str, Any] | None = None, **scenarios: dict[str, Any]) -> dict[str, list[str]]:
    """Names of the runs of each scenario."""
    base = {"question": "?", "figures": ["step_breakdown"]}
    filled = {name: base | scenario for name, scenario in scenarios.items()}
    expanded = expand(check({"fixed": {"device": "cpu"}, "scenarios": filled} | (keys or {}), "test"))
    return {name: [run.id for run in runs] for name, runs in expanded.items()}


def test_values_are_combined_and_repeated_whatever_other_scenarios_ask_for() -> None:
    one = {"vary": {"strategy": ["single", "ddp"], "precision": ["fp64", "fp32", "bf16"]}, "repeats": 2}
    alone, beside = ids(one=one), ids(zero={"fixed": {"precision": "fp64"}}, one=one)
    assert len(set(alone["one"])) == 2 * 3 * 2 and beside["one"] == alone["one"]
    # What two of them need is one run; a scenario may override what all share.
    sizes = {"fixed": {"precision": "fp32"}, "vary": {"image_size": [32, 64]}}
    formats = {"fixed": {"image_size": 32}, "vary": {"precision": ["fp32", "fp64"]}}
    found = ids(sizes=sizes, formats=formats, own={"fixed": {"device": "cuda"}})
    assert {*found["sizes"]} & {*found["formats"]} == {"vision_digits_32px_single_cpu1_fp32_r1"}
    assert found["own"] == ["vision_digits_32px_single_cuda1_fp32_r1"]


# Values of parameters that are no numbers or booleans.
OTHER = {
    "dataset": "cats", "strategy": "ddp", "device": "cpu", "profiler": "none", "loader": "dali",
    "layout": "nhwc", "binding": "numa", "preset": "tuned", "tf32": "off", "scaling": "strong", "learning_rate": 0.25,
    "model": "big", "technique": "dpo", "qat_of": "weights", "save": "keep", "steps_per_epoch": 7, "image_size": 48,
    "sequence_length": 17, "ablate": "loader", "library": "torchtune",
}  # fmt: skip


@pytest.mark.parametrize(("kind", "precision"), [(VisionParameters, "bf16"), (LlmParameters, "fp32")])
def test_every_parameter_shows_in_the_id(kind: type[JobParameters], precision: str) -> None:
    default, others = kind(), OTHER | {"precision": precision}
    names = {*kind.model_fields} - ({"workload", "model"} if kind is VisionParameters else {"workload"})
    for name in names:
        now = getattr(default, name)
        value = others[name] if name in others else not now if isinstance(now, bool) else type(now)(3)
        assert run_id(kind(**{name: value})) != run_id(default), name


def test_the_id_reads_well_and_is_a_file_name() -> None:
    p = VisionParameters(strategy="ddp-ds", device="cpu", devices=2, width_mult=0.5, learning_rate=1e-5, repeat=3)
    assert run_id(p) == "vision_digits_32px_ddp-ds_cpu2_fp32_width0.5_lr1e-05_r3"
    two_nodes = VisionParameters(strategy="ddp", devices=4, nodes=2)
    assert run_id(two_nodes) == "vision_digits_32px_ddp_cuda4_fp32_nodes2_r1"
    assert "nodes" not in run_id(VisionParameters()) + run_id(LlmParameters())


def test_a_long_id_is_cut_and_stays_unique() -> None:
    cut = {run_id(VisionParameters(dataset="d" * 200, seed=seed)) for seed in (1, 2)}
    assert len(cut) == 2 and all(len(name) <= LONGEST_ID for name in cut)


def test_a_preset_fills_in_what_is_not_stated_and_the_strategy_does_not_refuse() -> None:
    tuned = {"layout": "nhwc", "fused_optimizer": True, "tf32": "on", "pin_memory": True}
    for stated, filled, name in (
        ({}, tuned, "single_cuda1_fp32_tuned"),
        ({"layout": "nchw"}, tuned | {"layout": "nchw"}, "single_cuda1_fp32_nchw_tuned"),
        ({"strategy": "fsdp"}, tuned | {"layout": "nchw", "fused_optimizer": False}, "fsdp_cuda1_fp32_tuned"),
        ({"strategy": "fsdp", "layout": "nhwc", "fused_optimizer": True}, tuned, "fsdp_cuda1_fp32_nhwc_tuned_fused"),
    ):
        p = VisionParameters(preset="tuned", **stated)
        assert {key: getattr(p, key) for key in filled} == filled
        assert p.stated() == {"preset": "tuned"} | stated and parameters_of(p.stated()) == p
        assert run_id(p) == f"vision_digits_32px_{name}_r1"
    for p in (VisionParameters(), VisionParameters(devices=2), LlmParameters(technique="qat", packed=True)):
        assert parameters_of(p.stated()) == p
    assert VisionParameters().stated() == {}, "a parameter that is new changes no run"


def test_under_strong_scaling_devices_share_a_batch() -> None:
    found = []
    for own in ({"strategy": "ddp-ds"}, {"strategy": "ddp-ds", "scaling": "strong"}, {"strategy": "dp"}):
        p = VisionParameters(devices=4, batch_size=64, **own)
        found.append((p.batch_of_device, p.batch_of_rank, p.ranks))
    assert found == [(64, 64, 4), (16, 16, 4), (64, 256, 1)]


TUNING = {"question": "?", "figures": ["step_breakdown"], "fixed": {"workload": "llm", "dataset": "facts"}}
INPUTS = {
    "datasets": {"facts": {"source": "shipped-text", "texts": "instructions"}},
    "models": {"tiny": {"architecture": "tiny"}, "big": {"architecture": "llama3_8b", "folder": "no/such"}},
}


def test_a_scenario_takes_of_the_shared_parameters_those_that_its_workload_has() -> None:
    shared = INPUTS | {"fixed": {"device": "cpu", "width_mult": 0.5, "threads": 2}}
    assert ids(shared, a=TUNING) == {"a": ["llm_tiny_lora_facts_cpu1_bf16_threads2_r1"]}


def test_a_parameter_without_effect_on_a_technique_makes_no_further_runs() -> None:
    vary = {"technique": ["lora", "qat", "full"], "qat_of": ["adapters", "weights"]}
    kinds = ("lora_facts_cpu1", "qat_facts_cpu1", "qat_facts_cpu1_qat-weights", "full_facts_cpu1")
    assert sorted(name.replace("_bf16", "") for name in ids(INPUTS, a=TUNING | {"vary": vary, "repeats": 2})["a"]) == (
        sorted(f"llm_tiny_{kind}_r{repeat}" for kind in kinds for repeat in (1, 2))
    )
