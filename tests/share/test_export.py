"""Results that were exported, as the tools that they are for read them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import multicard
from multicard.cli import main
from multicard.cli.export import FORMAT_NAMES
from multicard.share.export import EXPORT_FORMATS
from recorded_runs import add_run, write_configuration

pytestmark = pytest.mark.slow

# Of a run: parameters, measures, and step and value of two series.
Read = dict[str, tuple[dict[str, Any], dict[str, float], list[tuple[int, float]], list[tuple[int, float]]]]


@pytest.fixture(scope="module")
def recorded(extracted_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recorded")
    for repeat, times in ((1, 1), (2, 1.5)):
        add_run(extracted_run, folder / "results", times, repeat=repeat)
    return write_configuration(folder / "mine.yaml", folder / "results", 2)


def of_json(out: Path) -> Read:
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    return {row["run"]: (row, row, [], []) for row in rows}


def of_openmetrics(out: Path) -> Read:
    from prometheus_client.openmetrics.parser import text_string_to_metric_families

    read: Read = {}
    for family in text_string_to_metric_families(out.read_text()):
        for sample in family.samples:
            parameters, measures, *_series = read.setdefault(sample.labels["run"], ({}, {}, [], []))
            if family.name == "multicard_run_info":
                parameters |= {name: int(text) if text.isdecimal() else text for name, text in sample.labels.items()}
            else:
                spelled = {"iteration_time_seconds": "iteration_time_s"}
                spelled["throughput_samples_per_second"] = "throughput_samples_per_s"
                name = family.name.removeprefix("multicard_")
                measures[spelled.get(name, name)] = sample.value
    return read


def of_mlflow(out: Path) -> Read:
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{out}/mlflow.db")
    [experiment] = [each for each in client.search_experiments() if each.name == "recorded"]
    read: Read = {}
    for run in client.search_runs([experiment.experiment_id]):
        assert (run.info.status, run.data.tags["outcome"]) == ("FINISHED", "completed")
        parameters = {name: int(text) if text.isdecimal() else text for name, text in run.data.params.items()}
        series = [
            [(each.step, each.value) for each in client.get_metric_history(run.info.run_id, f"step/{name}")]
            for name in ("duration_s", "loss")
        ]
        read[run.info.run_name] = (parameters, run.data.metrics, *map(sorted, series))
    return read


def row_of(items: Any) -> dict[str, Any]:
    return {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in items}


def logged(path: Path) -> list[bytes]:
    """The messages in a `.wandb` file, a log as LevelDB has them; wandb's own reader is in a compiled program."""
    data, messages, at = path.read_bytes(), [], 7  # after the file's own header
    while at < len(data):
        if (left := 32768 - at % 32768) < 7:  # no header of a part fits into what is left of the block
            at += left
            continue
        length, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        part = data[at + 7 : at + 7 + length]
        if kind in (1, 2):  # whole, or the first part
            messages.append(part)
        else:
            messages[-1] += part
        at += 7 + length
    return messages


def of_wandb(out: Path) -> Read:
    from wandb.proto.wandb_internal_pb2 import Record

    read: Read = {}
    for path in out.glob("wandb/offline-run-*/*.wandb"):
        values, series, name = {"config": {}, "summary": {}}, ([], []), ""
        for data in logged(path):
            record = Record.FromString(data)
            name = record.run.display_name or name
            for kind, found in (("config", values["config"]), ("summary", values["summary"])):
                for source in (getattr(record, kind), getattr(record.run, kind)):
                    found |= row_of(source.update)
            row = row_of(record.history.item)
            for of_name, rows in zip(("step/duration_s", "step/loss"), series, strict=True):
                rows += [(row["_step"], row[of_name])] if of_name in row else []
        read[name] = (values["config"], values["summary"], *series)
    return read


def of_tensorboard(out: Path) -> Read:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    read: Read = {}
    for folder in out.glob("recorded/*"):
        of_run, of_parameters = (EventAccumulator(str(place)).Reload() for place in (folder, folder / "hparams"))
        held = of_parameters.summary_metadata["_hparams_/session_start_info"].plugin_data.content
        stated = HParamsPluginData.FromString(held).session_start_info.hparams
        parameters = {name: value.string_value or value.number_value for name, value in stated.items()}
        measures = {name: of_parameters.Scalars(name)[0].value for name in of_parameters.Tags()["scalars"]}
        series = [
            [(each.step, each.value) for each in of_run.Scalars(f"step/{name}")] for name in ("duration_s", "loss")
        ]
        read[folder.name] = (parameters, measures, *series)
    return read


READERS: dict[str, Callable[[Path], Read]] = {
    "json": of_json,
    "mlflow": of_mlflow,
    "openmetrics": of_openmetrics,
    "tensorboard": of_tensorboard,
    "wandb": of_wandb,
}


def test_every_format_is_offered() -> None:
    assert tuple(sorted(EXPORT_FORMATS)) == FORMAT_NAMES == tuple(READERS)


@pytest.mark.parametrize("name", READERS)
def test_what_was_exported_is_read_back(
    recorded: Path, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "there"
    main(["export", str(recorded), "--to", name, "--out", str(out)])
    assert capsys.readouterr().out.startswith("exported 2 runs: ")
    assert list(tmp_path.iterdir()) == [out]

    read = READERS[name](out)
    measures = multicard.read_results(recorded).measures.set_index("run")
    assert set(read) == set(measures.index) and len(read) == 2
    for run, (parameters, values, *series) in read.items():
        for parameter in ("devices", "batch_size", "repeat", "strategy"):
            assert parameters[parameter] == measures[parameter][run]
        for measure in ("iteration_time_s", "throughput_samples_per_s", "efficiency"):
            if pd.notna(measures[measure][run]):
                assert values[measure] == pytest.approx(measures[measure][run], rel=1e-6)
        if name not in ("json", "openmetrics"):
            steps = pd.read_csv(recorded.parent / "results/runs" / run / "steps.csv").groupby("step")
            for rows, expected in zip(series, (steps["duration_s"].max(), steps["loss"].mean()), strict=True):
                assert [step for step, _ in rows] == expected.index.tolist()
                assert [value for _, value in rows] == pytest.approx(expected.tolist(), rel=1e-6)


def test_lines_of_json_are_printed(recorded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["export", str(recorded), "--to", "json"])
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert (first["scenario"], first["repeat"], second["repeat"]) == ("recorded", 1, 2)
    assert second["iteration_time_s"] == pytest.approx(1.5 * first["iteration_time_s"])


def test_a_name_that_is_taken_and_a_package_that_is_missing_are_refused(
    recorded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "there").write_text("mine")
    with pytest.raises(SystemExit, match="there exists, expected a new name; delete it, or state another one"):
        main(["export", str(recorded), "--to", "json", "--out", str(tmp_path / "there")])
    assert (tmp_path / "there").read_text() == "mine"
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(SystemExit, match="--to mlflow needs mlflow: pip install mlflow"):
        main(["export", str(recorded), "--to", "mlflow", "--out", str(tmp_path / "new")])
    assert not (tmp_path / "new").exists()
