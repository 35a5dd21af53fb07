"""Scenarios of a user's own script: what they may say, the runs that they make, and the command of each."""

import copy
import json
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from multicard.config.experiment import Scenario, is_parameter, parameters_in
from multicard.config.load import check, read_job
from multicard.config.runs import expand
from multicard.config.schema import json_schema
from multicard.core.errors import UserError
from multicard.programs import parameters_of
from multicard.programs.script.parameters import ScriptParameters
from multicard.runs.parameters import run_id
from script_runs import COMMAND, configuration, parameters_of_all


def errors_of(config: Any) -> list[str]:
    with pytest.raises(UserError) as caught:
        check(config, "mine.yaml", outside=False)
    return str(caught.value).splitlines()


def script(*command: str, vary: dict[str, Any] | None = None, **others: Any) -> dict[str, Any]:
    """A configuration of a script with this command, a figure that any scenario can have, and no further keys."""
    fixed = {"workload": "script", "command": list(command), "device": "cpu", **others}
    return configuration(fixed=fixed, vary=vary or {}, figures=["step_breakdown"])


def with_x(value: Any, **others: Any) -> ScriptParameters:
    return ScriptParameters(**{"command": ["train.py", "{x}"], "args": {"x": value}, "device": "cpu"} | others)


def ids(config: dict[str, Any], scenario: str = "ours") -> list[str]:
    return [run.id for run in expand(check(config, "mine.yaml", outside=False))[scenario]]


def test_a_scenario_expands_into_the_product_of_devices_and_own_parameters() -> None:
    found = [(p.devices, p.args) for p in parameters_of_all(configuration())]
    assert found == [
        (devices, {"batch_size": size, "amp": amp})
        for devices in (1, 2) for size in (32, 64) for amp in ("none", "bf16")
    ]  # fmt: skip
    scenario = Scenario.model_validate(configuration()["scenarios"]["ours"])
    assert scenario.varied == {"devices": [1, 2], "args.batch_size": [32, 64], "args.amp": ["none", "bf16"]}
    assert [is_parameter(name) for name in ("devices", "args.amp", "speedup")] == [True, True, False]
    assert parameters_in(["speedup", "args.amp", "devices", "workload"]) == ["workload", "devices", "args.amp"]
    names = ids(configuration())
    stem = names[0].split("_cpu")[0]
    assert stem.startswith("script_train-") and len(stem) == len("script_train-") + 6
    assert [name.removeprefix(stem) for name in names[:2]] == [
        "_cpu1_batch_size-32_amp-none_r1", "_cpu1_batch_size-32_amp-bf16_r1",
    ]  # fmt: skip


def test_the_command_has_its_names_filled_in() -> None:
    p = ScriptParameters(
        command=["train.py", "--b={b}", "{devices}x{devices_per_node}", "{nodes},{repeat},{seed}", "{{}}", "{run_dir}"],
        args={"b": 0.5}, devices=4, nodes=2, seed=10, repeat=3,
    )  # fmt: skip
    assert p.arguments("/out/x") == ["train.py", "--b=0.5", "4x2", "2,3,12", "{}", "/out/x"]


def test_values_reach_the_command_as_they_were_written_and_equal_commands_are_the_same_run() -> None:
    for value, word in (("bf16", "bf16"), (32, "32"), (1e-05, "1e-05"), (True, "True"), (False, "False"), ("", "")):
        assert with_x(value).arguments("r") == ["train.py", word]
    for text, value in (("32", 32), ("0.1", 0.1), ("True", True)):
        assert with_x(text) == with_x(value) and type(with_x(text).args["x"]) is type(value)
    for text in ("007", "1e-5", "1_000", "nan", "inf", "true", " 1", "+1"):  # which a number would change
        assert with_x(text).args == {"x": text} and with_x(text).arguments("r") == ["train.py", text]


def test_every_parameter_makes_another_run_with_a_name_for_a_file() -> None:
    changes: list[dict[str, Any]] = [
        {"command": ["train.py", "-v", "{x}"]}, {"command": ["train.py", "{x}", "-v"]}, {"folder": "other"},
        {"python": "/opt/venv/bin/python"}, {"launcher": "torchrun"}, {"environment": ["HF_HOME"]},
        {"samples_per_step": 64}, {"device": "cuda"}, {"devices": 2}, {"devices": 2, "nodes": 2}, {"threads": 2},
        {"seed": 1}, {"warmup_steps": 5}, {"steps": 10}, {"profiled_steps": 3},
        {"profiler": "none"}, {"loader_cpus": 2}, {"repeat": 2}, {"count_operations": True},
    ]  # fmt: skip
    values = (1, 2, "a/b", "a b", "a-b", "a_b", "a:b", "ä", "b", "a/b/", "", "x" * 100, "x" * 101, "x" * 300, "1_y-2")
    pairs = [{"x": "1_y-2", "y": 3}, {"x": 1, "y": "2_y-3"}, {"x": "1_nodes2", "y": 1}, {"x": 1, "y": "1_r1"}]
    found = [run_id(with_x(1, **change)) for change in changes] + [run_id(with_x(value)) for value in values]
    found += [run_id(with_x(1, command=["train.py", "{x}", "{y}"], args=own)) for own in pairs]
    assert len(set(found)) == len(changes) + len(values) + len(pairs)
    for name in found:
        assert len(name) < 200 and name[0].isalnum()
        assert all(character.isalnum() or character in "_.+-" for character in name)
    one, other = (with_x(1, command=["t.py", "{x}", "{y}"], args=own) for own in ({"x": 1, "y": 2}, {"y": 2, "x": 1}))
    assert run_id(one) == run_id(other), "the order in which they are stated makes no other run"


@pytest.mark.parametrize(
    ("command", "name"),
    [(["tools/train.py", "-v"], "train"), (["-m", "package.train", "own.py"], "train"), (["tune", "run"], "tune")],
)
def test_a_run_is_named_after_what_it_runs(command: list[str], name: str) -> None:
    assert run_id(with_x(1, command=command, args={})).startswith(f"script_{name}-")


def test_changing_one_scenario_changes_the_ids_of_its_own_runs_only() -> None:
    config = configuration()
    config["scenarios"]["other"] = copy.deepcopy(config["scenarios"]["ours"])
    config["scenarios"]["other"]["fixed"]["command"] = ["other.py", *COMMAND[1:]]
    ours, other = ids(config), ids(config, "other")
    config["scenarios"]["other"]["vary"]["args"]["batch_size"] = [32, 128]
    kept = {*other} & {*ids(config, "other")}
    assert ids(config) == ours
    assert len(kept) == 4 and all("batch_size-32" in run for run in kept)


def test_what_is_stated_gives_the_same_parameters_again() -> None:
    for p in parameters_of_all(configuration()):
        stated = json.loads(json.dumps(p.stated()))
        assert set(stated) <= {"workload", "command", "device", "devices", "args"}
        assert parameters_of(stated) == p == read_job(json.dumps(stated), None, None, None)


def test_what_all_scenarios_share_is_joined_with_a_scenarios_own() -> None:
    config = configuration(figures=["step_breakdown"], vary={"args": {"batch_size": [32]}})
    config["fixed"] = {"args": {"amp": "none", "batch_size": 8}}
    assert [p.args for p in parameters_of_all(config)] == [{"amp": "none", "batch_size": 32}]


UNDER_ARGS = "; a parameter of your own script goes under args"
VISION = {"workload": "vision", "device": "cpu"}
FAULTS = [
    (
        script("t.py", "{batch_sise}", args={"batch_size": 1}),
        ": command: {batch_sise} is neither your own parameter nor one of devices, devices_per_node, nodes, repeat, "
        "seed, run_dir (did you mean {batch_size}?)",
    ),
    (script("t.py", "{zzz}"), ": command: {zzz} is neither ", "(add args.zzz, or write {{ and }} for braces)"),
    (script("t.py", args={"lr": 1}), ": args.lr: the command does not use it; write {lr} where its value belongs"),
    (script("t.py", "{devices}", args={"devices": 1}), ": args.devices: multicard gives {devices} its value; choose"),
    (script("t.py", "--json={"), ": command: '--json={' has a single {; write {{ for a brace"),
    (script(), ".fixed.command: is empty, expected at least one"),
    (configuration(fixed={"workload": "script"}, vary={}, figures=["step_breakdown"]), ": command: missing"),
    (script("t.py", "{x}", args={"x": None}), ".fixed.args.x: found None, expected text, a number or a boolean"),
    (script("t.py", "{x}", args={"x": [1, 2]}), ".fixed.args.x: found [1, 2], expected text"),
    (script("t.py", "{X}", args={"X": 1}), ".fixed.args.X: found 'X', expected text that matches ^"),
    (script("t.py", batch_size=3), f".fixed.batch_size: not a parameter of the workload script{UNDER_ARGS}"),
    (script("t.py", vary={"amp": ["none"]}), f".vary.amp: unknown key{UNDER_ARGS}"),
    (script("t.py", vary={"args.batch-size": [8]}), ".vary.args.batch-size: unknown key (did you mean", UNDER_ARGS),
    (
        script("t.py", vary={"profilers": ["none"]}),
        f".vary.profilers: unknown key (did you mean 'profiler'?){UNDER_ARGS}",
    ),
    (script("t.py", "{x}", vary={"args": {"x": [1, "1"]}}), ": vary.args.x lists a value twice: [1, 1]"),
    (script("t.py", "{x}", args={"x": 1}, vary={"args": {"x": [1, 2]}}), ": args.x is both fixed and varied"),
    (script("t.py", "{x}", vary={"args": {"x": []}}), ".vary.args.x: is empty, expected at least one"),
    (
        configuration(fixed=VISION, vary={"args": {"x": [1]}}, figures=["step_breakdown"]),
        ".vary.args.x: not a parameter of the workload vision",
    ),
    (configuration(figures=["accuracy"]), ": the figure accuracy is about the workload vision, this one's is script"),
]


@pytest.mark.parametrize(("config", "begins", "ends"), [(*each, "")[:3] for each in FAULTS])
def test_a_fault_is_one_line_that_says_what_to_do(config: dict[str, Any], begins: str, ends: str) -> None:
    [line] = errors_of(config)
    assert line.startswith(f"mine.yaml: scenarios.ours{begins}") and line.endswith(ends)


def test_the_schema_accepts_and_refuses_what_the_model_does() -> None:
    schema = Draft202012Validator(json_schema())
    for config in (configuration(), script("t.py"), *(script("t.py", "{x}", args={"x": x}) for x in (True, 0.5))):
        assert schema.is_valid(config)
        check(config, "mine.yaml", outside=False)
    for config in (
        script(),
        *(script("t.py", args={"x": value}) for value in (None, [1])),
        script("t.py", args={"X": 1}),
        script("t.py", environment=["1A"]),
        script("t.py", steps=0),
        script("t.py", launcher="torchrum"),
        script("t.py", measured_steps=3),
        *(script("t.py", vary={"args": {"x": values}}) for values in ([], 3, [None])),
        script("t.py", vary={"args": {"X": [1]}}),
        *(configuration(fixed={"workload": "script", "command": command}) for command in ("train.py", [1])),
    ):
        assert not schema.is_valid(config) and errors_of(config), config
