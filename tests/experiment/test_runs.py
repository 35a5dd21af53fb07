"""Scenarios expand into runs whose ids depend on the run alone."""

import dataclasses
import importlib.util
from pathlib import Path
from typing import Any

import pytest
import yaml

from multicard.experiment import machine
from multicard.experiment.load import check
from multicard.experiment.machine import Machine
from multicard.experiment.parameters import LONGEST_ID, run_id
from multicard.experiment.runs import Run, expand
from multicard.experiment.workload import parameters_of
from multicard.workloads.llm.parameters import LlmParameters
from multicard.workloads.vision.parameters import VisionParameters

LAPTOP = Machine(cpus=2, gpus=0, profilers=("kineto", "none"))


def experiment(**scenarios: dict[str, Any]) -> Any:
    filled = {
        name: {"question": "?", "figures": ["step_breakdown"], **scenario} for name, scenario in scenarios.items()
    }
    return check({"fixed": {"device": "cpu"}, "scenarios": filled}, "test")


def ids(expanded: dict[str, list[Run]], name: str) -> list[str]:
    return [run.id for run in expanded[name]]


def test_values_are_combined_and_repeated() -> None:
    expanded = expand(
        experiment(a={"vary": {"strategy": ["single", "ddp"], "precision": ["fp64", "fp32", "bf16"]}, "repeats": 2})
    )
    assert len(set(ids(expanded, "a"))) == 2 * 3 * 2


def test_a_scenarios_runs_do_not_depend_on_other_scenarios() -> None:
    one = {"vary": {"devices": [1, 2]}, "fixed": {"strategy": "ddp"}}
    alone = expand(experiment(one=one))
    beside = expand(experiment(zero={"fixed": {"precision": "fp64"}}, one=one))
    assert ids(alone, "one") == ids(beside, "one")


def test_two_scenarios_that_need_the_same_run_share_it() -> None:
    expanded = expand(
        experiment(
            sizes={"fixed": {"precision": "fp32"}, "vary": {"image_size": [32, 64]}},
            formats={"fixed": {"image_size": 32}, "vary": {"precision": ["fp32", "fp64"]}},
        )
    )
    assert set(ids(expanded, "sizes")) & set(ids(expanded, "formats")) == {"vision_digits_32px_single_cpu1_fp32_r1"}


def test_a_scenario_may_override_what_all_share() -> None:
    [run] = expand(experiment(a={"fixed": {"device": "cuda"}}))["a"]
    assert run.parameters.device == "cuda"


@pytest.mark.parametrize("name", [n for n in VisionParameters.model_fields if n not in ("workload", "model")])
def test_every_parameter_shows_in_the_id(name: str) -> None:
    other = {
        "dataset": "cats", "image_size": 48, "strategy": "ddp", "device": "cpu", "devices": 2, "precision": "bf16",
        "width_mult": 0.5, "steps_per_epoch": 7, "learning_rate": 0.25, "profiler": "none", "scaling": "strong",
        "loader": "dali", "layout": "nhwc", "binding": "numa", "preset": "tuned", "tf32": "off",
    }  # fmt: skip
    default = VisionParameters()
    now = getattr(default, name)
    value = other.get(name, not now if isinstance(now, bool) else 3)
    assert run_id(VisionParameters(**{name: value})) != run_id(default)


def test_the_id_reads_well_and_is_a_file_name() -> None:
    parameters = VisionParameters(
        strategy="ddp-ds", device="cpu", devices=2, width_mult=0.5, learning_rate=1e-5, repeat=3
    )
    assert run_id(parameters) == "vision_digits_32px_ddp-ds_cpu2_fp32_width0.5_lr1e-05_r3"


def test_a_long_id_is_cut_and_stays_unique() -> None:
    long = [VisionParameters(dataset="d" * 200, seed=seed) for seed in (1, 2)]
    cut = [run_id(parameters) for parameters in long]
    assert len(set(cut)) == 2
    assert all(len(name) <= LONGEST_ID for name in cut)


def test_a_new_default_parameter_changes_no_stated_parameters() -> None:
    assert VisionParameters().stated() == {}
    assert VisionParameters(devices=2).stated() == {"devices": 2}


def test_a_preset_fills_in_what_is_not_stated() -> None:
    tuned = VisionParameters(preset="tuned", layout="nchw")
    assert (tuned.layout, tuned.tf32, tuned.pin_memory, tuned.fused_optimizer) == ("nchw", "on", True, True)
    assert tuned.stated() == {"preset": "tuned", "layout": "nchw"}
    assert VisionParameters.model_validate(tuned.stated()) == tuned
    assert run_id(tuned) == "vision_digits_32px_single_cuda1_fp32_nchw_tuned_r1"


def test_the_preset_leaves_out_what_fsdp_refuses() -> None:
    tuned = VisionParameters(preset="tuned", strategy="fsdp", devices=2)
    assert (tuned.layout, tuned.fused_optimizer, tuned.tf32, tuned.pin_memory) == ("nchw", False, "on", True)
    assert tuned.stated() == {"preset": "tuned", "strategy": "fsdp", "devices": 2}
    assert VisionParameters.model_validate(tuned.stated()) == tuned
    assert run_id(tuned) == "vision_digits_32px_fsdp_cuda2_fp32_tuned_r1"


def test_what_is_stated_goes_before_the_preset_even_where_fsdp_refuses_it() -> None:
    stated = VisionParameters(preset="tuned", strategy="fsdp", layout="nhwc", fused_optimizer=True)
    assert (stated.layout, stated.fused_optimizer) == ("nhwc", True)
    assert VisionParameters.model_validate(stated.stated()) == stated
    assert run_id(stated) == "vision_digits_32px_fsdp_cuda1_fp32_nhwc_tuned_fused_r1"


def test_under_strong_scaling_devices_share_a_batch() -> None:
    weak = VisionParameters(strategy="ddp-ds", devices=4, batch_size=64)
    strong = VisionParameters(strategy="ddp-ds", devices=4, batch_size=64, scaling="strong")
    one_process = VisionParameters(strategy="dp", devices=4, batch_size=64)
    assert [(p.batch_of_device, p.batch_of_rank, p.ranks) for p in (weak, strong, one_process)] == [
        (64, 64, 4), (16, 16, 4), (64, 256, 1),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("parameters", "reason"),
    [
        ({"device": "cpu", "strategy": "dp", "devices": 2}, "the strategy dp needs two or more GPUs"),
        (
            {"device": "cpu", "strategy": "ddp", "devices": 2, "batch_size": 7, "scaling": "strong"},
            "a batch of 7 cannot be shared equally by 2 devices",
        ),
        ({"device": "cpu", "cuda_graphs": True}, "CUDA graphs need a GPU"),
        (
            {"device": "cpu", "strategy": "fsdp", "layout": "nhwc"},
            "the strategy fsdp cannot split weights in the layout nhwc",
        ),
        (
            {"device": "cpu", "strategy": "fsdp", "preset": "tuned", "fused_optimizer": True},
            "the strategy fsdp has no fused optimizer (SGD)",
        ),
        ({"device": "cpu", "strategy": "fsdp", "preset": "tuned"}, None),
        (
            {"device": "cpu", "loader": "dali"},
            'the loader dali needs the package nvidia-dali-cuda130 (pip install "multicard[dali]")',
        ),
        ({"device": "cpu", "compile": True}, "torch.compile needs a C++ compiler, none found"),
        ({"device": "cpu", "strategy": "ddp", "devices": 2}, None),
        ({"device": "cpu", "strategy": "ddp", "devices": 4}, "needs 4 devices, 2 found"),
        ({"device": "cpu", "strategy": "single", "devices": 2}, "the strategy single uses one device, not 2"),
        ({"device": "cuda"}, "needs a CUDA GPU, none found"),
        ({"device": "cpu", "profiler": "nsys"}, "needs nsys on the PATH, not found"),
    ],
)
def test_what_cannot_run_here_says_why(parameters: dict[str, Any], reason: str | None) -> None:
    chosen = VisionParameters(**parameters)
    assert Run(run_id(chosen), chosen).unsupported_reason(LAPTOP) == reason


@pytest.mark.parametrize(
    ("parameters", "reason"),
    [
        ({"strategy": "dp"}, None),
        (
            {"strategy": "dp", "compile": True},
            "the strategy dp copies the model in every step, which torch.compile does not support",
        ),
        (
            {"strategy": "dp", "cuda_graphs": True},
            "the strategy dp copies the model in every step, which torch.compile does not support",
        ),
        ({"strategy": "fsdp", "compile": True}, None),
        (
            {"strategy": "fsdp", "cuda_graphs": True},
            "the strategy fsdp moves weights in every step, CUDA graphs need them in one place",
        ),
        ({"strategy": "ddp-ds", "cuda_graphs": True}, None),
    ],
)
def test_strategies_refuse_what_they_cannot_be_compiled_with(parameters: dict[str, Any], reason: str | None) -> None:
    chosen = VisionParameters(**parameters, devices=2)
    assert Run(run_id(chosen), chosen).unsupported_reason(Machine(cpus=8, gpus=2, compiler=True)) == reason


def test_what_is_compiled_for_gpus_is_refused_where_triton_cannot_compile() -> None:
    lacking = "a C compiler, none found (gcc, clang)"
    bare = Machine(cpus=8, gpus=2, compiler=True, triton=lacking)
    packed = f"packed: true on GPUs has its attention compiled, which needs {lacking}; or packed: false"
    compiled = f"torch.compile on GPUs needs {lacking}"
    for chosen, reason in (
        (LlmParameters(device="cuda", packed=True), packed),
        (LlmParameters(device="cuda"), None),
        (LlmParameters(device="cpu", packed=True), None),
        (LlmParameters(device="cuda", compile=True), compiled),
        (VisionParameters(device="cuda", compile=True), compiled),
        (VisionParameters(device="cuda", cuda_graphs=True), compiled),
        (VisionParameters(device="cpu", compile=True), None),
    ):
        run = Run(run_id(chosen), chosen)
        assert run.unsupported_reason(bare) == reason
        assert run.unsupported_reason(dataclasses.replace(bare, triton=None)) is None


def test_gpus_are_counted_on_a_machine_with_gpus() -> None:
    chosen = VisionParameters(strategy="ddp", devices=4)
    two_cards = dataclasses.replace(LAPTOP, gpus=2)
    assert Run(run_id(chosen), chosen).unsupported_reason(two_cards) == "needs 4 devices, 2 found"
    assert Run(run_id(chosen), chosen).unsupported_reason(dataclasses.replace(LAPTOP, gpus=4)) is None


def tuning(**fixed: Any) -> Any:
    texts = {"facts": {"source": "shipped-text", "texts": "instructions"}}
    models = {"tiny": {"architecture": "tiny"}, "big": {"architecture": "llama3_8b", "folder": "no/such"}}
    scenario = {
        "question": "?",
        "figures": ["step_breakdown"],
        "fixed": {"workload": "llm", "dataset": "facts", **fixed},
    }
    shared = {"device": "cpu", "width_mult": 0.5, "threads": 2}
    return check({"fixed": shared, "datasets": texts, "models": models, "scenarios": {"a": scenario}}, "test")


def test_a_scenario_takes_of_the_shared_parameters_those_that_its_workload_has() -> None:
    [run] = expand(tuning())["a"]
    assert run.id == "llm_tiny_lora_facts_cpu1_bf16_threads2_r1"


@pytest.mark.parametrize("name", [n for n in LlmParameters.model_fields if n != "workload"])
def test_every_parameter_of_tuning_shows_in_the_id(name: str) -> None:
    other = {
        "dataset": "cats", "model": "big", "technique": "dpo", "device": "cpu", "precision": "fp32", "profiler": "none",
        "binding": "numa", "learning_rate": 0.25, "qat_of": "weights", "save": "keep", "sequence_length": 17,
    }  # fmt: skip
    default = LlmParameters()
    now = getattr(default, name)
    value = other[name] if name in other else not now if isinstance(now, bool) else type(now)(3)
    assert run_id(LlmParameters(**{name: value})) != run_id(default)


def test_a_parameter_without_effect_on_a_technique_makes_no_further_runs() -> None:
    scenario = {
        "question": "?", "figures": ["step_breakdown"], "repeats": 2, "fixed": {"workload": "llm", "dataset": "facts"},
        "vary": {"technique": ["lora", "qat", "full"], "qat_of": ["adapters", "weights"]},
    }  # fmt: skip
    texts = {"facts": {"source": "shipped-text", "texts": "instructions"}}
    expanded = ids(expand(check({"datasets": texts, "scenarios": {"a": scenario}}, "test")), "a")
    kinds = (
        "lora_facts_cuda1_bf16",
        "qat_facts_cuda1_bf16",
        "qat_facts_cuda1_bf16_qat-weights",
        "full_facts_cuda1_bf16",
    )
    assert sorted(expanded) == sorted(f"llm_tiny_{kind}_r{repeat}" for kind in kinds for repeat in (1, 2))


@pytest.mark.parametrize(
    ("technique", "configuration"),
    [
        ({"technique": "lora"}, "llama3/8B_lora"),
        ({"technique": "qlora"}, "llama3/8B_qlora_single_device"),
        ({"technique": "qat"}, "llama3/8B_qat_lora"),
        ({"technique": "qat", "qat_of": "weights"}, "llama3/8B_qat_full"),
        ({"technique": "dpo"}, "llama3_1/8B_lora_dpo"),
        ({"technique": "full"}, "llama3/8B_full"),
    ],
)
def test_learning_rates_are_those_of_torchtunes_own_configurations(
    technique: dict[str, Any], configuration: str
) -> None:
    recipes = importlib.util.find_spec("recipes")  # torchtune's, beside it
    stock = yaml.safe_load(
        (Path(recipes.submodule_search_locations[0]) / "configs" / f"{configuration}.yaml").read_text()
    )
    assert LlmParameters(**technique).peak_learning_rate == float(stock["optimizer"]["lr"])
    assert LlmParameters(**technique, learning_rate=0.1).peak_learning_rate == 0.1


def test_stated_parameters_of_tuning_make_the_same_parameters_again() -> None:
    for chosen in (LlmParameters(), LlmParameters(technique="qat", packed=True), VisionParameters(devices=2)):
        assert parameters_of(chosen.stated()) == chosen


@pytest.mark.parametrize(
    ("fixed", "reason"),
    [
        ({}, None),
        ({"devices": 4}, "needs 4 devices, 2 found"),
        ({"technique": "qlora", "devices": 3}, "the technique qlora cannot share q_proj of tiny among 3 devices"),
        ({"model": "big"}, "no weights: no such folder: no/such"),
    ],
)
def test_tuning_that_cannot_run_here_says_why(fixed: dict[str, Any], reason: str | None) -> None:
    [run] = expand(tuning(**fixed))["a"]
    assert run.unsupported_reason(LAPTOP) == reason


def test_tuning_needs_the_versions_that_were_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"torchtune": "0.6.1", "torchao": "0.16.0", "torch": "2.11.0"}
    monkeypatch.setattr(machine, "version", found.__getitem__)
    wrong = machine.torchtune_unsupported_reason()
    assert wrong == "torchao 0.16.0 is installed, 0.15 supported"
    [run] = expand(tuning())["a"]
    assert run.unsupported_reason(dataclasses.replace(LAPTOP, torchtune=wrong)) == wrong
    found |= {"torchao": "0.15.0", "torch": "2.11.0+cu130"}
    assert machine.torchtune_unsupported_reason() is None


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        raise machine.PackageNotFoundError(name)

    monkeypatch.setattr(machine, "version", version)
    assert machine.torchtune_unsupported_reason() == (
        'tuning language models needs the package torchtune (pip install "multicard[llm]")'
    )
