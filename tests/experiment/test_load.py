"""Bad input gets one line that names file and key."""

import copy
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator
from snakemake.cli import get_profile_dir
from snakemake.utils import validate

from conftest import ROOT
from multicard.core.errors import UserError
from multicard.experiment.config import json_schema
from multicard.experiment.load import check, read_experiment, read_profile

GOOD: dict[str, Any] = {
    "scenarios": {
        "sizes": {
            "question": "Does it scale?",
            "fixed": {"device": "cpu", "strategy": "ddp-ds"},
            "vary": {"devices": [1, 2], "image_size": [32, 64]},
            "figures": ["speedup"],
        }
    }
}


def errors_of(config: Any) -> list[str]:
    with pytest.raises(UserError) as caught:
        check(config, "mine.yaml")
    return str(caught.value).splitlines()


def changed(*path: str, value: Any) -> dict[str, Any]:
    config = copy.deepcopy(GOOD)
    section = config
    for key in path[:-1]:
        section = section.setdefault(key, {})
    section[path[-1]] = value
    return config


SIZES = ("scenarios", "sizes")
TEXTS = {
    "facts": {"source": "shipped-text", "texts": "instructions"},
    "pairs": {"source": "shipped-text", "texts": "preferences"},
    "digits": {"source": "digits"},
}


def tuning(section: str, **parameters: Any) -> dict[str, Any]:
    """A scenario of a language model with more parameters, fixed or varied."""
    scenario = {"question": "?", "fixed": {"workload": "llm", "dataset": "facts"}, "figures": ["step_breakdown"]}
    scenario[section] = scenario.get(section, {}) | parameters
    return {"datasets": TEXTS, "scenarios": {"tuning": scenario}}


@pytest.mark.parametrize(
    ("config", "line"),
    [
        (changed("resluts", value="x"), "mine.yaml: resluts: unknown key (did you mean 'results'?)"),
        (
            changed(*SIZES, "fixed", "presicion", value="fp32"),
            "mine.yaml: scenarios.sizes.fixed.presicion: unknown key (did you mean 'precision'?)",
        ),
        (
            changed(*SIZES, "fixed", "strategy", value="ddpp"),
            "mine.yaml: scenarios.sizes.fixed.strategy: found 'ddpp', expected one of single, dp, ddp, ddp-ds, fsdp "
            "(did you mean 'ddp'?)",
        ),
        (
            changed(*SIZES, "vary", "precision", value=["fp32", "fp31"]),
            "mine.yaml: scenarios.sizes.vary.precision.1: found 'fp31', expected one of fp64, fp32, bf16, fp16 "
            "(did you mean 'fp32'?)",
        ),
        (
            changed(*SIZES, "vary", "image_size", value=[0]),
            "mine.yaml: scenarios.sizes.vary.image_size.0: found 0, input should be greater than or equal to 8",
        ),
        (
            changed(*SIZES, "vary", "devices", value=[0, 1]),
            "mine.yaml: scenarios.sizes.vary.devices.0: found 0, input should be greater than or equal to 1",
        ),
        (
            changed(*SIZES, "vary", "devices", value=["two", 1]),
            "mine.yaml: scenarios.sizes.vary.devices.0: found 'two', input should be a valid integer",
        ),
        (
            changed(*SIZES, "fixed", "learning_rate", value="1e-3"),
            "mine.yaml: scenarios.sizes.fixed.learning_rate: found '1e-3', input should be a valid number "
            "(YAML wants a point: 1.0e-3)",
        ),
        (
            changed(*SIZES, "fixed", "learning_rate", value=float("nan")),
            "mine.yaml: scenarios.sizes.fixed.learning_rate: found nan, input should be a finite number",
        ),
        (
            changed(*SIZES, "fixed", "warmup_steps", value="never"),
            "mine.yaml: scenarios.sizes.fixed.warmup_steps: found 'never', expected a number of steps, at least 0, "
            "or auto",
        ),
        (changed("scenarios", "empty", value=None), "mine.yaml: scenarios.empty: is empty, expected a mapping"),
        (
            changed("scenarios", "empty", value={"question": "?", "figures": ["step_breakdown"]}),
            "mine.yaml: scenarios.empty: an empty scenario: state parameters under fixed or vary",
        ),
        (changed(*SIZES, "vary", "precision", value=[]), "mine.yaml: scenarios.sizes.vary.precision: is empty"),
        (changed("scenarios", value={}), "mine.yaml: scenarios: is empty"),
        (
            changed(*SIZES, "fixed", "devices", value=1),
            "mine.yaml: scenarios.sizes: devices is both fixed and varied",
        ),
        (
            changed(*SIZES, "vary", "scaling", value=["weak", "strong"]),
            "mine.yaml: scenarios.sizes: weak and strong scaling are two questions: give each a scenario of its own",
        ),
        (
            changed(*SIZES, "figures", value=["precision"]),
            "mine.yaml: scenarios.sizes: the figure precision needs two or more values of vary.precision",
        ),
        (
            changed(*SIZES, "vary", "devices", value=[2, 2]),
            "mine.yaml: scenarios.sizes: vary.devices lists a value twice: [2, 2]",
        ),
        (
            changed(*SIZES, "fixed", "dataset", value="digit"),
            "mine.yaml: scenarios.sizes.fixed.dataset: no data set 'digit' under datasets (did you mean 'digits'?)",
        ),
        (
            changed("datasets", value={"cats": {"source": "imagefolder", "folder": "no/such"}}),
            "mine.yaml: datasets.cats.folder: no such folder: no/such",
        ),
        (
            changed("datasets", value={"cats": {"source": "web"}}),
            "mine.yaml: datasets.cats.source: found 'web', expected one of digits, imagefolder, kaggle-mnist, mnist, "
            "published-text, shipped-text, synthetic, text-file",
        ),
        (
            changed("datasets", value={"mine": {"folder": "x"}}),
            "mine.yaml: datasets.mine.source: missing, expected one of digits, imagefolder, kaggle-mnist, mnist, "
            "published-text, shipped-text, synthetic, text-file",
        ),
        (
            changed("datasets", value={"mine": {"source": "digits", "stored_siz": 300}}),
            "mine.yaml: datasets.mine.stored_siz: unknown key (did you mean 'stored_size'?)",
        ),
        (
            changed("datasets", value={"mine": {"source": "digits", "limit": 0}}),
            "mine.yaml: datasets.mine.limit: found 0, input should be greater than or equal to 1",
        ),
        (
            changed("datasets", value={"mine": {"source": "synthetic"}}),
            "mine.yaml: datasets.mine.samples: missing",
        ),
        (
            changed("datasets", value={"mine": {"source": "kaggle-mnist", "path": "no/train.csv"}}),
            "mine.yaml: datasets.mine.path: no such file or folder: no/train.csv",
        ),
        (
            changed("datasets", value={"mine": {"source": "kaggle-mnist", "path": "x" * 300}}),
            "mine.yaml: datasets.mine.source: kaggle-mnist cannot be looked for: File name too long",
        ),
        (
            changed("datasets", value={"mine": {"source": "imagefolder", "folder": "x", "unreadable": "skp"}}),
            "mine.yaml: datasets.mine.unreadable: found 'skp', expected one of refuse, skip (did you mean 'skip'?)",
        ),
        (
            changed("datasets", value={"mine": {"source": "mnist", "folder": "no"}}),
            "mine.yaml: datasets.mine.folder: no does not contain train-images-idx3-ubyte, train-labels-idx1-ubyte, "
            "t10k-images-idx3-ubyte, t10k-labels-idx1-ubyte; download: true would fetch them",
        ),
        (
            changed(*SIZES, "fixed", "technique", value="lora"),
            "mine.yaml: scenarios.sizes.fixed.technique: not a parameter of the workload vision",
        ),
        (
            tuning("vary", image_size=[32, 64]),
            "mine.yaml: scenarios.tuning.vary.image_size: not a parameter of the workload llm",
        ),
        (
            tuning("fixed", precision="fp64"),
            "mine.yaml: scenarios.tuning: precision: found 'fp64', expected one of fp32, bf16",
        ),
        (
            tuning("fixed", model="tinny"),
            "mine.yaml: scenarios.tuning.fixed.model: no model 'tinny' under models (did you mean 'tiny'?)",
        ),
        (
            tuning("fixed", dataset="digits"),
            "mine.yaml: scenarios.tuning: the workload llm cannot use the data set digits (source: digits)",
        ),
        (
            changed(*SIZES, "fixed", "dataset", value="facts") | {"datasets": TEXTS},
            "mine.yaml: scenarios.sizes: the workload vision cannot use the data set facts (source: shipped-text)",
        ),
        (
            tuning("fixed", technique="dpo"),
            "mine.yaml: scenarios.tuning: the technique dpo needs a data set of kind preference, facts is one of kind "
            "instruction",
        ),
        (
            tuning("fixed", technique="qat", qat_group=96),
            "mine.yaml: scenarios.tuning: qat_group: 96 does not divide 512, the width of q_proj in tiny",
        ),
        (
            tuning("fixed", sequence_length=4096),
            "mine.yaml: scenarios.tuning: sequence_length: 4096 is more than the 2048 of the model tiny",
        ),
        (
            tuning("fixed", technique="dpo", dataset="pairs", packed=True),
            "mine.yaml: scenarios.tuning: packed: the technique dpo cannot pack its samples",
        ),
        (
            tuning("fixed", technique="qat", compile=True),
            "mine.yaml: scenarios.tuning: compile: torchtune's recipes of the technique qat cannot compile",
        ),
        (
            changed(*SIZES, "figures", value=["techniques"]),
            "mine.yaml: scenarios.sizes: the figure techniques needs two or more values of vary.technique",
        ),
        (
            changed("models", value={"big": {"architecture": "llama3_8b"}}),
            "mine.yaml: models.big.folder: missing; the weights can be fetched by: tune download "
            "meta-llama/Meta-Llama-3-8B-Instruct --output-dir weights/llama3_8b --ignore-patterns "
            "'original/consolidated.*'",
        ),
        (
            changed("models", value={"big": {"architecture": "llama4"}}),
            "mine.yaml: models.big.architecture: found 'llama4', expected one of tiny, llama3_8b, llama3_1_8b, "
            "llama3_2_1b (did you mean 'llama3_8b'?)",
        ),
        (
            changed("datasets", value={"mine": {"source": "published-text", "texts": "samsum"}}),
            "mine.yaml: datasets.mine.folder: missing; download: true would fetch knkarthick/samsum",
        ),
        (
            changed("datasets", value={"mine": {"source": "text-file", "path": "no.json", "samples": "chat"}}),
            "mine.yaml: datasets.mine.path: no such file: no.json",
        ),
        (
            changed("modules", value=["cuda/13.0", "cuda; touch x"]),
            "mine.yaml: modules.1: the name 'cuda; touch x' does not match ^[A-Za-z0-9][A-Za-z0-9_.+/-]*$",
        ),
        ({}, "mine.yaml: scenarios: missing"),
        (None, "mine.yaml: expected a mapping with the key scenarios, found nothing"),
        ([1], "mine.yaml: expected a mapping with the key scenarios, found list"),
    ],
    ids=lambda value: value.partition(": ")[2] if isinstance(value, str) else "",
)
def test_an_error_is_named_in_one_line(config: Any, line: str) -> None:
    assert line in errors_of(config)


def test_every_fault_gets_a_line_of_its_own() -> None:
    config = changed(*SIZES, "vary", "devices", value=[0, "two"])
    config["x"] = 1
    assert len(errors_of(config)) == 3


def test_a_results_folder_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    config = changed("results", value=str(tmp_path / "taken" / "results"))
    assert errors_of(config) == [
        f"mine.yaml: results: cannot write to {tmp_path}/taken/results: {tmp_path}/taken is not a folder"
    ]


def test_a_results_folder_on_a_read_only_file_system_is_refused() -> None:
    # /proc takes no folders, whoever asks.
    [line] = errors_of(changed("results", value="/proc/results"))
    assert line.startswith("mine.yaml: results: cannot write to /proc/results: ")


def test_a_data_folder_without_its_parts_is_refused(tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    config = changed("datasets", value={"cats": {"source": "imagefolder", "folder": str(tmp_path)}})
    assert f"mine.yaml: datasets.cats.folder: no such folder: {tmp_path}/test" in errors_of(config)


def test_what_may_be_downloaded_need_not_be_there() -> None:
    check(changed("datasets", value={"digits": {"source": "mnist", "folder": "no", "download": True}}), "mine.yaml")


def test_only_the_missing_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "train-images-idx3-ubyte.gz").touch()
    (tmp_path / "MNIST" / "raw").mkdir(parents=True)
    (tmp_path / "MNIST" / "raw" / "t10k-images-idx3-ubyte").touch()
    assert (
        f"mine.yaml: datasets.mine.folder: {tmp_path} does not contain train-labels-idx1-ubyte, "
        "t10k-labels-idx1-ubyte; download: true would fetch them"
    ) in errors_of(changed("datasets", value={"mine": {"source": "mnist", "folder": str(tmp_path)}}))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("scenarios: [1", ", line 1, column 14: does not parse as YAML: "),
        ("a: 1\na: 2", ", line 2, column 1: does not parse as YAML: the key 'a' stands here twice"),
        (
            "scenarios:\n  one: {}\n  two: {}\n  one: {}",
            ", line 4, column 3: does not parse as YAML: the key 'one' stands here twice",
        ),
        ("\tb: 1", ", line 1, column 1: does not parse as YAML: "),
    ],
)
def test_yaml_that_does_not_parse_is_placed(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(UserError) as caught:
        read_experiment(path)
    [line] = str(caught.value).splitlines()
    assert line.startswith(f"{path}{says}")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"none\.yaml: cannot be read: No such file"):
        read_experiment(tmp_path / "none.yaml")


def test_merge_keys_of_yaml_are_allowed(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(
        "scenarios:\n  a: &a {question: q, fixed: {device: cpu}, figures: [step_breakdown]}\n"
        "  b: {<<: *a, repeats: 2}\n"
    )
    assert read_experiment(path).scenarios["b"].repeats == 2


def test_the_shipped_schema_is_the_models_schema() -> None:
    shipped = json.loads((ROOT / "workflow/schemas/config.schema.json").read_text(encoding="utf-8"))
    assert shipped == json_schema(), "run: python -m multicard.experiment > workflow/schemas/config.schema.json"


def test_a_list_of_values_has_the_schema_of_the_single_value() -> None:
    scenario = {"question": "?", "vary": {"devices": [1, 0]}, "figures": ["step_breakdown"]}
    schema = json_schema()
    Draft202012Validator.check_schema(schema)
    [error] = Draft202012Validator(schema).iter_errors({"scenarios": {"a": scenario}})
    assert error.json_path == "$.scenarios.a.vary.devices[1]"
    assert error.message == "0 is less than the minimum of 1"


@pytest.mark.parametrize(
    "dataset",
    [
        {"source": "digits"},
        {"source": "digits", "stored_size": 300, "limit": 100},
        {"source": "imagefolder", "folder": "x"},
        {"source": "kaggle-mnist", "path": "x"},
        {"source": "mnist", "folder": "x"},
        {"source": "synthetic", "samples": 1},
        {"source": "shipped-text", "texts": "chats"},
        {"source": "text-file", "path": "x", "samples": "chat", "limit": 3},
        {"source": "published-text", "texts": "samsum", "download": True},
    ],
    ids=lambda dataset: "-".join(dataset),
)
def test_snakemake_takes_every_kind_of_data_set(dataset: dict[str, Any]) -> None:
    schema = ROOT / "workflow/schemas/config.schema.json"
    validate(changed("datasets", value={"mine": dataset}), schema, set_default=False)


def test_the_shipped_experiment_is_valid() -> None:
    read_experiment(ROOT / "config/config.yaml")


@pytest.mark.parametrize(
    ("profile", "says"), [("- a", "found no mapping of options"), ("config: [a]", "expected a mapping")]
)
def test_a_profile_that_states_no_mapping_is_refused_in_one_line(tmp_path: Path, profile: str, says: str) -> None:
    (tmp_path / "config.yaml").write_text(profile)
    with pytest.raises(UserError, match=says):
        read_experiment(ROOT / "config/config.yaml", tmp_path)


def test_a_profile_is_merged_into_the_configuration_as_snakemake_merges_it(tmp_path: Path) -> None:
    scenario = {"question": "?", "figures": ["step_breakdown"], "fixed": {"device": "cpu"}}
    config = {"cluster": {"gpu_memory_gb": 80, "nodes": 1}, "scenarios": {"a": scenario}}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(config))
    (tmp_path / "config.yaml").write_text("config: {cluster: {nodes: 2, cpus_per_node: 16}}\n")
    (tmp_path / "Snakefile").write_text("import json\nprint('merged', json.dumps(config['cluster']))\nrule all:\n")
    command = [sys.executable, "-m", "snakemake", "--configfile", "mine.yaml", "--profile", ".", "--cores", "1", "-n"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    [merged] = re.findall("^merged (.*)$", ended.stdout, re.M)
    read = read_experiment(tmp_path / "mine.yaml", tmp_path).cluster
    assert (read.gpu_memory_gb, read.nodes, read.cpus_per_node) == (80, 2, 16)
    assert {key: int(value) for key, value in json.loads(merged).items()} == {
        key: value for key, value in read.model_dump().items() if key in ("gpu_memory_gb", "nodes", "cpus_per_node")
    }


@pytest.mark.parametrize(
    "names",
    [
        ("config.yaml", "config.v9+.yaml", "config.v99+.yaml"),
        ("config.v9+.yaml", "config.v8+.yaml", "profile.yaml"),
        ("config.yaml", "config-old.yaml", "configs.yaml"),
    ],
)
def test_of_several_profile_files_the_one_that_snakemake_takes_is_read(tmp_path: Path, names: tuple[str, ...]) -> None:
    for name in names:
        (tmp_path / name).write_text(f"name: {name}\n")
    _, taken = get_profile_dir(str(tmp_path))
    assert read_profile(tmp_path)["name"] == taken.name
