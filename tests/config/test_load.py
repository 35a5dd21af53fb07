"""Bad input gets one line that names file and key."""

import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator
from snakemake.utils import update_config, validate

from conftest import ROOT, refusal
from multicard.config.experiment import Experiment, Fixed, Scenario
from multicard.config.load import check, read_experiment, read_profile, read_yaml
from multicard.config.schema import json_schema
from multicard.core.errors import UserError

SIZES: dict[str, Any] = {
    "question": "Does it scale?",
    "fixed": {"device": "cpu", "strategy": "ddp-ds"},
    "vary": {"devices": [1, 2], "image_size": [32, 64]},
    "figures": ["speedup"],
}
TUNING: dict[str, Any] = {
    "question": "?", "fixed": {"workload": "llm", "dataset": "facts"}, "vary": {}, "figures": ["step_breakdown"],
}  # fmt: skip
TEXTS = {
    "facts": {"source": "shipped-text", "texts": "instructions"},
    "pairs": {"source": "shipped-text", "texts": "preferences"},
    "digits": {"source": "digits"},
}
KINDS = "digits, imagefolder, kaggle-mnist, mnist, published-text, shipped-text, synthetic, text-file"


def errors_of(config: Any) -> list[str]:
    with pytest.raises(UserError) as caught:
        check(config, "mine.yaml")
    return str(caught.value).splitlines()


def any_errors_of(config: Any) -> list[str]:
    """The same of what may be right."""
    try:
        check(config, "mine.yaml")
    except UserError as error:
        return str(error).splitlines()
    return []


def having(**keys: Any) -> dict[str, Any]:
    """A valid configuration with other keys."""
    return {"scenarios": {"sizes": SIZES}} | keys


def data(**definition: Any) -> dict[str, Any]:
    return having(datasets={"mine": definition})


def sizes(fixed: dict[str, Any] | None = None, vary: dict[str, Any] | None = None, **keys: Any) -> dict[str, Any]:
    """The same with more parameters of its scenario."""
    more = {"fixed": SIZES["fixed"] | (fixed or {}), "vary": SIZES["vary"] | (vary or {})}
    return having(scenarios={"sizes": SIZES | more | keys})


def tuning(**fixed: Any) -> dict[str, Any]:
    """A scenario of a language model with more parameters."""
    return {"datasets": TEXTS, "scenarios": {"tuning": TUNING | {"fixed": TUNING["fixed"] | fixed}}}


@pytest.mark.parametrize(
    ("config", "line"),
    [
        # Each kind of message, whole.
        (having(resluts="x"), "resluts: unknown key (did you mean 'results'?)"),
        (
            sizes({"strategy": "ddpp"}),
            "scenarios.sizes.fixed.strategy: found 'ddpp' (did you mean 'ddp'?), expected one of single, dp, ddp, "
            "ddp-ds, fsdp",
        ),
        (sizes(vary={"image_size": [0]}), "scenarios.sizes.vary.image_size.0: found 0, expected 8 or more"),
        (
            sizes({"learning_rate": "1e-3"}),
            "scenarios.sizes.fixed.learning_rate: found '1e-3', expected a number (YAML wants a point: 1.0e-3)",
        ),
        (having(scenarios={"empty": None}), "scenarios.empty: found nothing, expected a mapping"),
        (having(scenarios={"empty": {"question": "?", "figures": ["memory"]}}), "scenarios.empty: an empty scenario: "),
        (having(scenarios={}), "scenarios: is empty, expected at least one"),
        (sizes({"devices": 1}), "scenarios.sizes: devices is both fixed and varied"),
        (sizes(vary={"devices": [2, 2]}), "scenarios.sizes: vary.devices lists a value twice: [2, 2]"),
        (sizes(figures=["gain_precision"]), "scenarios.sizes: the figure gain_precision needs two or more values of"),
        (
            sizes({"dataset": "digit"}),
            "scenarios.sizes.fixed.dataset: no data set 'digit' under datasets (did you mean",
        ),
        (data(source="web"), f"datasets.mine.source: found 'web', expected one of {KINDS}"),
        (data(folder="x"), f"datasets.mine.source: found 'nothing', expected one of {KINDS}"),
        (sizes({"technique": "lora"}), "scenarios.sizes.fixed.technique: not a parameter of the workload vision"),
        (
            tuning(dataset="digits"),
            "scenarios.tuning: the workload llm cannot use the data set digits (source: digits)",
        ),
        (
            having(modules=["cuda/13.0", "cuda; touch x"]),
            "modules.1: found 'cuda; touch x', expected text that matches ^",
        ),
        (None, "expected a mapping with the key scenarios, found nothing"),
        ([1], "expected a mapping with the key scenarios, found list"),
        (sizes({"device": "gpu"}), "scenarios.sizes.fixed.device: found 'gpu' (did you mean 'cuda'?), expected one of"),
        (
            sizes({"device": "CUDA"}),
            "scenarios.sizes.fixed.device: found 'CUDA' (did you mean 'cuda'?), expected one of",
        ),
        (sizes({"precision": "float16"}), "scenarios.sizes.fixed.precision: found 'float16' (did you mean 'fp16'?), "),
        (sizes(vary={"devices": 2}), "scenarios.sizes.vary.devices: found 2, expected a list such as [2]"),
        (sizes(vary={"devices": ["one"]}), "scenarios.sizes.vary.devices.0: found 'one', expected a whole number"),
        (
            sizes(figures=["speed_up"]),
            "scenarios.sizes.figures.0: found 'speed_up' (did you mean 'speedup'?), expected",
        ),
        # Others begin alike.
        ({}, "scenarios: missing"),
        (sizes({"presicion": "fp32"}), "scenarios.sizes.fixed.presicion: unknown key (did you mean 'precision'?)"),
        (sizes({"learning_rate": float("nan")}), "scenarios.sizes.fixed.learning_rate: found nan, "),
        (data(source="imagefolder", folder="no/such"), "datasets.mine.folder: no such folder: no/such"),
        (data(source="kaggle-mnist", path="no/train.csv"), "datasets.mine.path: no such file or folder: no/train.csv"),
        (data(source="kaggle-mnist", path="x" * 300), "datasets.mine.source: kaggle-mnist cannot be looked for: File"),
        (data(source="published-text", texts="samsum"), "datasets.mine.folder: missing; download: true would fetch"),
        (data(source="text-file", path="no.json", samples="chat"), "datasets.mine.path: no such file: no.json"),
        (tuning(precision="fp64"), "scenarios.tuning: precision: found 'fp64', expected one of fp32, bf16"),
        (tuning(model="tinny"), "scenarios.tuning.fixed.model: no model 'tinny' under models (did you mean 'tiny'?)"),
        (tuning(technique="dpo"), "scenarios.tuning: the technique dpo needs a data set of kind preference, facts"),
        (tuning(technique="qat", qat_group=96), "scenarios.tuning: qat_group: 96 does not divide 512, the width of"),
        (tuning(sequence_length=4096), "scenarios.tuning: sequence_length: 4096 is more than the 2048"),
        (tuning(technique="dpo", dataset="pairs", packed=True), "scenarios.tuning: packed: the technique dpo cannot"),
        (
            tuning(library="torchtune", technique="qat", compile=True),
            "scenarios.tuning: compile: torchtune's recipes of the technique qat",
        ),
        (having(models={"big": {"architecture": "llama3_8b"}}), "models.big.folder: missing; the weights can be "),
    ],
    ids=lambda value: value[:60] if isinstance(value, str) else "",
)
def test_an_error_is_named_in_one_line(config: Any, line: str) -> None:
    assert any(each.startswith(f"mine.yaml: {line}") for each in errors_of(config))


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("010", "'010' is a number to base 8"),
        ("-07", "'-07' is a number to base 8"),
        ("08", None),  # which no version takes for a number
        ("1:30", "'1:30' is a number to base 60"),
        ("1:30.5", "'1:30.5' is a number to base 60"),
        ("on", "'on' is a boolean"),
        ("No", "'No' is a boolean"),
        ("true", None),
        ("10", None),
        ("0", None),
        ("0.5", None),
        ("'010'", None),
        ("'no'", None),
    ],
)
def test_what_versions_of_yaml_read_differently_is_refused(value: str, says: str | None, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(f"args: {{n: {value}}}\n")
    if says is None:
        read_yaml(path)
    else:
        assert refusal(lambda: read_yaml(path)).startswith(f"{path}, line 1, column 11: does not parse as YAML: {says}")


def test_a_profile_of_snakemake_means_what_it_means_to_snakemake(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("printshellcmds: yes\n")
    assert read_profile(tmp_path) == {"printshellcmds": True}


def test_names_that_are_options_or_longer_than_those_of_files_are_refused() -> None:
    assert errors_of(having(results="-rf"))[0].startswith("mine.yaml: results: found '-rf', expected text that matches")
    for too_long in (f"{'x' * 300}/y", "x" * 300):
        assert errors_of(having(results=too_long))[0].startswith("mine.yaml: results: cannot write to xxx")
    long = "s" * 300
    [line] = errors_of(having(scenarios={long: SIZES}))
    assert line.startswith(f"mine.yaml: scenarios.{long[:99]}…: found 's") and "100 characters at most" in line
    assert "100 characters at most" in errors_of(having(datasets={long: {"source": "digits"}}))[0]


def test_names_and_texts_that_look_like_secrets_are_refused() -> None:
    token = f"sk-{'planted' * 3}1"
    assert errors_of(having(scenarios={token: SIZES})) == [
        "mine.yaml: scenarios: a name holds what looks like a secret, which would be recorded; leave it out"
    ]
    [line] = errors_of(sizes(question=f"Is {token} good?"))
    assert (
        line.startswith("mine.yaml: scenarios.sizes.question: it holds what looks like a secret") and token not in line
    )


def test_a_misspelt_key_is_one_fault_and_not_a_missing_one_too() -> None:
    assert errors_of({"scenarois": {"sizes": SIZES}}) == [
        "mine.yaml: scenarois: unknown key (did you mean 'scenarios'?)"
    ]
    assert errors_of({"x": 1}) == ["mine.yaml: scenarios: missing", "mine.yaml: x: unknown key"]


def test_no_fault_is_told_in_the_words_of_pydantic() -> None:
    """Those of `error.msg`, which speak of inputs, dictionaries and validation."""
    odd = [None, "x", "", -1, 10**9, 1.5, float("nan"), True, [], {}, [None], {"x": None}, [[1]], {1: 2}]
    own = re.compile(r"[Ii]nput|valid |dictionar|tuple|instance|Field|finite|should")
    lines = []
    for name, value in itertools.product(Fixed.model_fields, odd):
        lines += any_errors_of(sizes({name: value})) + any_errors_of(sizes(vary={name: value}))
    for name, value in itertools.product(Experiment.model_fields, odd):
        lines += any_errors_of(having(**{name: value}))
    for name, value in itertools.product(Scenario.model_fields, odd):
        lines += any_errors_of(having(scenarios={"sizes": SIZES | {name: value}}))
    for name, value in itertools.product(("datasets", "models"), odd):
        lines += any_errors_of(having(**{name: {"mine": value}}))
    assert len(lines) > 500
    assert [line for line in lines if own.search(line.replace("finite number", ""))] == []


def test_every_fault_gets_a_line_of_its_own() -> None:
    assert len(errors_of(sizes(vary={"devices": [0, "two"]}) | {"x": 1})) == 3


def test_a_results_folder_that_cannot_be_written_to_is_refused(tmp_path: Path) -> None:
    (tmp_path / "taken").touch()
    assert errors_of(having(results=f"{tmp_path}/taken/results")) == [
        f"mine.yaml: results: cannot write to {tmp_path}/taken/results: {tmp_path}/taken is not a folder"
    ]
    [line] = errors_of(having(results="/proc/results"))  # which takes no folders, whoever asks
    assert line == "mine.yaml: results: cannot write to /proc/results: /proc: not writable"


def test_of_a_data_set_only_what_is_missing_is_named(tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    assert f"mine.yaml: datasets.mine.folder: no such folder: {tmp_path}/test" in errors_of(
        data(source="imagefolder", folder=str(tmp_path))
    )
    (tmp_path / "train-images-idx3-ubyte.gz").touch()
    (tmp_path / "MNIST" / "raw").mkdir(parents=True)
    (tmp_path / "MNIST" / "raw" / "t10k-images-idx3-ubyte").touch()
    assert (
        f"mine.yaml: datasets.mine.folder: {tmp_path} does not contain train-labels-idx1-ubyte, "
        "t10k-labels-idx1-ubyte; download: true would fetch them"
    ) in errors_of(data(source="mnist", folder=str(tmp_path)))
    check(having(datasets={"digits": {"source": "mnist", "folder": "no", "download": True}}), "mine.yaml")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("scenarios: [1", ", line 1, column 14: does not parse as YAML: "),
        ("a:\n  one: {}\n  one: {}", ", line 3, column 3: does not parse as YAML: the key 'one' stands here twice"),
        ("\tb: 1", ", line 1, column 1: does not parse as YAML: "),
        ("x: !!python/object/apply:os.system ['true']", ", line 1, column 4: does not parse as YAML: "),
        (None, ": cannot be read: No such file"),
    ],
)
def test_yaml_that_does_not_parse_is_placed(tmp_path: Path, text: str | None, says: str) -> None:
    path = tmp_path / "mine.yaml"
    if text is not None:
        path.write_text(text)
    assert refusal(lambda: read_experiment(path)).startswith(f"{path}{says}")


def test_merge_keys_of_yaml_are_allowed(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(
        "scenarios:\n  a: &a {question: q, fixed: {device: cpu}, figures: [step_breakdown]}\n"
        "  b: {<<: *a, repeats: 2}\n"
    )
    assert read_experiment(path).scenarios["b"].repeats.least == 2


def test_the_shipped_schema_is_the_models_schema() -> None:
    shipped = json.loads((ROOT / "workflow/schemas/config.schema.json").read_text(encoding="utf-8"))
    assert shipped == json_schema(), "run: python -m multicard.config > workflow/schemas/config.schema.json"


def test_a_list_of_values_has_the_schema_of_the_single_value() -> None:
    scenario = {"question": "?", "vary": {"devices": [1, 0]}, "figures": ["step_breakdown"]}
    schema = json_schema()
    Draft202012Validator.check_schema(schema)
    [error] = Draft202012Validator(schema).iter_errors({"scenarios": {"a": scenario}})
    assert error.json_path == "$.scenarios.a.vary.devices[1]"
    assert error.message == "0 is less than the minimum of 1"


def test_snakemake_takes_every_kind_of_data_set() -> None:
    sets: dict[str, dict[str, Any]] = {
        "digits": {"stored_size": 300, "limit": 100},
        "imagefolder": {"folder": "x"},
        "kaggle-mnist": {"path": "x"},
        "mnist": {"folder": "x"},
        "synthetic": {"samples": 1},
        "shipped-text": {"texts": "chats"},
        "text-file": {"path": "x", "samples": "chat", "limit": 3},
        "published-text": {"texts": "samsum", "download": True},
    }
    config = having(datasets={name: {"source": name} | keys for name, keys in sets.items()})
    validate(config, ROOT / "workflow/schemas/config.schema.json", set_default=False)
    assert sorted(sets) == KINDS.split(", ")


@pytest.mark.parametrize(
    ("profile", "says"), [("- a", "found no mapping of options"), ("config: [a]", "expected a mapping")]
)
def test_a_profile_that_states_no_mapping_is_refused_in_one_line(tmp_path: Path, profile: str, says: str) -> None:
    (tmp_path / "config.yaml").write_text(profile)
    with pytest.raises(UserError, match=says):
        read_experiment(ROOT / "config/config.yaml", tmp_path)
    with pytest.raises(UserError, match=r"none/config\.yaml: cannot be read: No such file"):
        read_profile(tmp_path / "none")


def test_a_profile_is_merged_into_the_configuration_as_snakemake_merges_it(tmp_path: Path) -> None:
    cluster = {"gpu_memory_gb": 80, "nodes": 1, "cpus_per_node": 8}
    config = having(cluster=cluster, results="measured")
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(config))
    (tmp_path / "config.yaml").write_text("config: {cluster: {nodes: 2, cpus_per_node: 16}}\n")
    read = read_experiment(tmp_path / "mine.yaml", tmp_path)
    update_config(config, {"cluster": {"nodes": 2, "cpus_per_node": 16}})
    assert read == check(config, "merged")
    assert (read.cluster.gpu_memory_gb, read.cluster.nodes, read.cluster.cpus_per_node) == (80, 2, 16)
