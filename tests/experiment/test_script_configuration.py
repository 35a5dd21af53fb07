"""Scenarios of a user's own script: what they may say, the runs that they make, and the command of each."""

import copy
import json
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from multicard.core.errors import UserError
from multicard.experiment.config import Scenario, is_parameter, json_schema, parameters_in
from multicard.experiment.load import check, read_job
from multicard.experiment.parameters import run_id
from multicard.experiment.runs import expand
from multicard.experiment.workload import parameters_of
from multicard.workloads.script.parameters import ScriptParameters
from script_runs import COMMAND, configuration, parameters_of_all


def errors_of(config: Any) -> list[str]:
    with pytest.raises(UserError) as caught:
        check(config, "mine.yaml", outside=False)
    return str(caught.value).splitlines()


def fixed(*command: str, **others: Any) -> dict[str, Any]:
    return {"fixed": {"workload": "script", "command": list(command), "device": "cpu", **others}, "vary": {}}


def figures(*names: str) -> dict[str, Any]:
    return {"figures": list(names)}


SIMPLE = figures("step_breakdown")


def ids(config: dict[str, Any]) -> list[str]:
    return [run.id for run in expand(check(config, "mine.yaml", outside=False))["ours"]]


def test_a_scenario_expands_into_the_product_of_devices_and_own_parameters() -> None:
    found = [(p.devices, p.args) for p in parameters_of_all(configuration())]
    assert found == [
        (devices, {"batch_size": size, "amp": amp})
        for devices in (1, 2) for size in (32, 64) for amp in ("none", "bf16")
    ]  # fmt: skip


def test_own_parameters_are_columns_of_their_own() -> None:
    scenario = Scenario.model_validate(configuration()["scenarios"]["ours"])
    assert scenario.varied == {"devices": [1, 2], "args.batch_size": [32, 64], "args.amp": ["none", "bf16"]}
    assert [is_parameter(name) for name in ("devices", "args.amp", "speedup")] == [True, True, False]
    assert parameters_in(["speedup", "args.amp", "devices", "workload"]) == ["workload", "devices", "args.amp"]


def test_the_command_has_its_names_filled_in() -> None:
    p = ScriptParameters(
        command=["train.py", "--b={b}", "{devices}x{devices_per_node}", "{nodes},{repeat},{seed}", "{{}}", "{run_dir}"],
        args={"b": 0.5}, devices=4, nodes=2, seed=10, repeat=3,
    )  # fmt: skip
    assert p.arguments("/out/x") == ["train.py", "--b=0.5", "4x2", "2,3,12", "{}", "/out/x"]


@pytest.mark.parametrize(
    ("value", "word"), [("bf16", "bf16"), (32, "32"), (1e-05, "1e-05"), (True, "True"), (False, "False"), ("", "")]
)
def test_values_reach_the_command_as_python_writes_them(value: Any, word: str) -> None:
    assert ScriptParameters(command=["t.py", "{x}"], args={"x": value}).arguments("r") == ["t.py", word]


@pytest.mark.parametrize(("text", "value"), [("32", 32), ("0.1", 0.1), ("True", True)])
def test_text_that_gives_the_same_command_is_the_same_run(text: str, value: Any) -> None:
    one, other = (ScriptParameters(command=["t.py", "{x}"], args={"x": each}) for each in (text, value))
    assert one == other and type(one.args["x"]) is type(value)
    assert run_id(one) == run_id(other)


@pytest.mark.parametrize("text", ["007", "1e-5", "1_000", "nan", "inf", "true", " 1", "+1"])
def test_text_that_a_number_would_change_stays_as_it_is(text: str) -> None:
    p = ScriptParameters(command=["t.py", "{x}"], args={"x": text})
    assert p.args == {"x": text} and p.arguments("r") == ["t.py", text]


def test_run_ids_are_readable_and_unique() -> None:
    found = ids(configuration())
    assert len(set(found)) == 8
    stem = found[0].split("_cpu")[0]
    assert stem.startswith("script_train-") and len(stem) == len("script_train-") + 6
    assert [name.removeprefix(stem) for name in found[:3]] == [
        "_cpu1_batch_size-32_amp-none_r1", "_cpu1_batch_size-32_amp-bf16_r1", "_cpu1_batch_size-64_amp-none_r1",
    ]  # fmt: skip


def base(**changes: Any) -> ScriptParameters:
    return ScriptParameters(**{"command": ["train.py", "{x}"], "args": {"x": 1}, "device": "cpu"} | changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"command": ["train.py", "-v", "{x}"]}, {"command": ["train.py", "{x}", "-v"]}, {"folder": "other"},
        {"python": "/opt/venv/bin/python"}, {"launcher": "torchrun"}, {"environment": ["HF_HOME"]},
        {"samples_per_step": 64}, {"device": "cuda"}, {"devices": 2}, {"devices": 2, "nodes": 2}, {"threads": 2},
        {"seed": 1}, {"warmup_steps": 5}, {"warmup_steps": "auto"}, {"steps": 10}, {"profiled_steps": 3},
        {"profiler": "none"}, {"loader_cpus": 2}, {"repeat": 2}, {"args": {"x": 2}}, {"args": {"x": "a/b"}},
        {"args": {"x": "a b"}}, {"args": {"x": "a-b"}}, {"args": {"x": ""}}, {"args": {"x": "x" * 300}},
        {"count_operations": True},
    ],
)  # fmt: skip
def test_every_parameter_makes_another_run(changes: dict[str, Any]) -> None:
    one, other = run_id(base()), run_id(base(**changes))
    assert one != other
    assert len(other) < 200
    assert other[0].isalnum() and all(character.isalnum() or character in "_.+-" for character in other)


@pytest.mark.parametrize(
    ("command", "name"),
    [(["tools/train.py", "-v"], "train"), (["-m", "package.train", "own.py"], "train"), (["tune", "run"], "tune")],
)
def test_a_run_is_named_after_what_it_runs(command: list[str], name: str) -> None:
    assert run_id(base(command=command, args={})).startswith(f"script_{name}-")


def test_values_with_the_same_letters_make_other_runs() -> None:
    values = ["a/b", "a b", "a-b", "a_b", "a:b", "ä", "b", "a/b/", "x" * 100, "x" * 101, "1_y-2"]
    assert len({run_id(base(args={"x": value})) for value in values}) == len(values)
    pairs = [{"x": "1_y-2", "y": 3}, {"x": 1, "y": "2_y-3"}, {"x": "1_nodes2", "y": 1}, {"x": 1, "y": "1_r1"}]
    assert len({run_id(base(command=["t.py", "{x}", "{y}"], args=own)) for own in pairs}) == len(pairs)


def test_the_order_in_which_own_parameters_are_stated_makes_no_other_run() -> None:
    one, other = {"x": 1, "y": 2}, {"y": 2, "x": 1}
    command = ["t.py", "{x}", "{y}"]
    assert run_id(base(command=command, args=one)) == run_id(base(command=command, args=other))


def test_changing_one_scenario_changes_the_ids_of_its_own_runs_only() -> None:
    config = configuration()
    config["scenarios"]["other"] = copy.deepcopy(config["scenarios"]["ours"])
    config["scenarios"]["other"]["fixed"]["command"] = ["other.py", *COMMAND[1:]]
    before = expand(check(config, "mine.yaml", outside=False))
    config["scenarios"]["other"]["vary"]["args"]["batch_size"] = [32, 128]
    after = expand(check(config, "mine.yaml", outside=False))
    assert [run.id for run in before["ours"]] == [run.id for run in after["ours"]]
    kept = {run.id for run in before["other"]} & {run.id for run in after["other"]}
    assert len(kept) == 4 and all("batch_size-32" in run for run in kept)


def test_what_is_stated_gives_the_same_parameters_again() -> None:
    for p in parameters_of_all(configuration()):
        stated = json.loads(json.dumps(p.stated()))
        assert set(stated) <= {"workload", "command", "device", "devices", "args"}
        assert parameters_of(stated) == p
        assert read_job(json.dumps(p.stated()), None, None, None) == p


def test_what_all_scenarios_share_is_joined_with_a_scenarios_own() -> None:
    config = configuration(**SIMPLE, vary={"args": {"batch_size": [32]}})
    config["fixed"] = {"args": {"amp": "none", "batch_size": 8}}
    assert [p.args for p in parameters_of_all(config)] == [{"amp": "none", "batch_size": 32}]


OURS = "mine.yaml: scenarios.ours"
UNDER_ARGS = "; if it is a parameter of your own, state it under args"
GIVEN = "devices, devices_per_node, nodes, repeat, seed, run_dir"


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        (
            fixed("train.py", "{batch_sise}", args={"batch_size": 1}),
            f"{OURS}: command: {{batch_sise}} is neither your own parameter nor one of {GIVEN} "
            "(did you mean {batch_size}?)",
        ),
        (
            fixed("train.py", "{zzz}"),
            f"{OURS}: command: {{zzz}} is neither your own parameter nor one of {GIVEN} "
            "(add args.zzz, or write {{ and }} for braces)",
        ),
        (
            fixed("train.py", args={"lr": 1}),
            f"{OURS}: args.lr: the command does not use it; write {{lr}} where its value belongs",
        ),
        (
            fixed("train.py", "{devices}", args={"devices": 1}),
            f"{OURS}: args.devices: multicard gives {{devices}} its value; choose another name",
        ),
        (
            fixed("train.py", "--json={"),
            f"{OURS}: command: '--json={{' has a single {{; write {{{{ for a brace",
        ),
        (fixed(), f"{OURS}.fixed.command: is empty"),
        (
            {"fixed": {"workload": "script", "device": "cpu"}, "vary": {}},
            f"{OURS}: command: missing",
        ),
        (
            fixed("t.py", "{x}", args={"x": None}),
            f"{OURS}.fixed.args.x: found None, expected text, a number or a boolean",
        ),
        (
            fixed("t.py", "{x}", args={"x": [1, 2]}),
            f"{OURS}.fixed.args.x: found [1, 2], expected text, a number or a boolean",
        ),
        (
            fixed("t.py", "{X}", args={"X": 1}),
            f"{OURS}.fixed.args.X: the name 'X' does not match ^[a-z][a-z0-9_]*$",
        ),
        (
            fixed("t.py", batch_size=3),
            f"{OURS}.fixed.batch_size: not a parameter of the workload script{UNDER_ARGS} "
            "(scenarios.ours.fixed.args.batch_size)",
        ),
        (
            fixed("t.py", binding="numa"),
            f"{OURS}.fixed.binding: not a parameter of the workload script{UNDER_ARGS} "
            "(scenarios.ours.fixed.args.binding)",
        ),
        (
            fixed("t.py", "{x}") | {"vary": {"amp": ["none", "bf16"]}},
            f"{OURS}.vary.amp: unknown key{UNDER_ARGS} (scenarios.ours.vary.args.amp)",
        ),
        (
            fixed("t.py", "{x}") | {"vary": {"args.batch-size": [8, 16]}},
            f"{OURS}.vary.args.batch-size: unknown key (did you mean 'batch_size'?){UNDER_ARGS} "
            "(scenarios.ours.vary.args.batch_size)",
        ),
        (
            fixed("t.py") | {"vary": {"profilers": ["none"]}},
            f"{OURS}.vary.profilers: unknown key (did you mean 'profiler'?){UNDER_ARGS} "
            "(scenarios.ours.vary.args.profilers)",
        ),
        (
            fixed("t.py", "{x}") | {"vary": {"args": {"x": [1, 1]}}},
            f"{OURS}: vary.args.x lists a value twice: [1, 1]",
        ),
        (
            fixed("t.py", "{x}") | {"vary": {"args": {"x": [1, "1"]}}},
            f"{OURS}: vary.args.x lists a value twice: [1, 1]",
        ),
        (
            fixed("t.py", "{x}", args={"x": 1}) | {"vary": {"args": {"x": [1, 2]}}},
            f"{OURS}: args.x is both fixed and varied",
        ),
        (fixed("t.py", "{x}") | {"vary": {"args": {"x": []}}}, f"{OURS}.vary.args.x: is empty"),
        (
            {"fixed": {"workload": "vision", "device": "cpu", "args": {"x": 1}}, "vary": {}},
            f"{OURS}.fixed.args: not a parameter of the workload vision",
        ),
        (
            {"fixed": {"workload": "vision", "device": "cpu"}, "vary": {"args": {"x": [1]}}},
            f"{OURS}.vary.args.x: not a parameter of the workload vision",
        ),
    ],
)
def test_a_fault_is_one_line_that_says_what_to_do(changes: dict[str, Any], line: str) -> None:
    assert errors_of(configuration(**{**SIMPLE, **changes})) == [line]


def test_a_key_that_scenarios_share_is_to_be_stated_under_args_where_their_workload_is_a_script() -> None:
    config = configuration(**SIMPLE, fixed={"command": ["t.py"], "device": "cpu"}, vary={"amp": ["none"]})
    config["fixed"] = {"workload": "script", "momenta": "sgd"}
    assert errors_of(config) == [
        f"mine.yaml: fixed.momenta: unknown key{UNDER_ARGS} (fixed.args.momenta)",
        f"{OURS}.vary.amp: unknown key{UNDER_ARGS} (scenarios.ours.vary.args.amp)",
    ]
    config["fixed"]["workload"] = "vision"
    assert errors_of(config) == ["mine.yaml: fixed.momenta: unknown key", f"{OURS}.vary.amp: unknown key"]


def test_figures_of_one_workload_only_are_refused() -> None:
    lines = errors_of(configuration(**figures("accuracy")))
    assert lines == [f"{OURS}: the figure accuracy is about the workload vision, this one's is script"]


@pytest.mark.parametrize(
    ("changes", "is_valid"),
    [
        ({}, True),
        (fixed("train.py"), True),
        (fixed("t.py", "{x}", args={"x": True}), True),
        (fixed("t.py", "{x}", args={"x": 0.5}), True),
        (fixed(), False),
        (fixed("t.py", args={"x": None}), False),
        (fixed("t.py", args={"x": [1]}), False),
        (fixed("t.py", args={"X": 1}), False),
        (fixed("t.py", environment=["1A"]), False),
        (fixed("t.py", steps=0), False),
        (fixed("t.py", launcher="torchrum"), False),
        (fixed("t.py", measured_steps=3), False),
        (fixed("t.py") | {"vary": {"args": {"x": []}}}, False),
        (fixed("t.py") | {"vary": {"args": {"x": 3}}}, False),
        (fixed("t.py") | {"vary": {"args": {"x": [None]}}}, False),
        (fixed("t.py") | {"vary": {"args": {"X": [1]}}}, False),
        ({"fixed": {"workload": "script", "command": "train.py"}, "vary": {}}, False),
        ({"fixed": {"workload": "script", "command": [1]}, "vary": {}}, False),
    ],
)
def test_the_schema_accepts_and_refuses_what_the_model_does(changes: dict[str, Any], is_valid: bool) -> None:
    config = configuration(**{**SIMPLE, **changes})
    found = Draft202012Validator(json_schema()).is_valid(config)
    assert found == is_valid
    if not is_valid:
        assert errors_of(config)
    else:
        check(config, "mine.yaml", outside=False)
