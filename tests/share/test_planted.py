"""Secrets and places, planted wherever a user can put one, are in nothing that is given away.

Places hold the word "planted" and a blank, secrets the word "xyzzy"; archives hold neither. Tables, exports and reports
of one's own results name places, and no secrets.
"""

import json
import re
import tarfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from multicard import read_results
from multicard.answers.choice.applied import Request
from multicard.config.load import check
from multicard.config.runs import expand_scenario
from multicard.core.reasons import Reason
from multicard.core.secrets import arguments_without_secrets
from multicard.launch.variables import secrets_in, settings
from multicard.share.export import EXPORT_FORMATS, export, exported_runs
from multicard.share.pack import pack
from script_runs import write_script_run

HOME = "/home"  # named apart: no file of the project holds a whole path of a machine
PLACE = f"{HOME}/planted person/my planted data"
TOKEN = f"hf_{'Xyzzy' * 3}1"
HOST = "zeta9.planted.example"

WORDS = [
    "train.py", "--password", "xyzzy one", "--db-token", "xyzzy2", "--passwd=xyzzy three", "wandb.api_key=xyzzy4",
    "+auth.token=xyzzy5", "-I/opt/planted/include", "--pw", "{word}", "--api-key={key}", "--out", "{out}",
    f"--data={PLACE}/x.csv", f"{PLACE}/y", f"--both={PLACE}/a:{PLACE}/b", f'--quoted="{PLACE}/z"', "AWS_REGION=planted",
    "--mail=ada@planted.example", "--node", HOST, "--config", f'{{{{"path": "{PLACE}/c"}}}}',
    f"--hub=file://{PLACE}/d", r"--windows=C:\Users\planted person\data", "~planted/e", "-c", f"{PLACE}/conf.yaml",
]  # fmt: skip
LINE = [
    "bash", "-c",
    rf"cd '{PLACE}' && export DB_PASSWORD=xyzzy6; python train.py --password xyzzy7 --data {HOME}/planted\ person/x "
    rf'--token "xyzzy 8" --to "{PLACE}" -b {{batch}}',
]  # fmt: skip
ARGS = {"word": "xyzzy9", "key": "xyzzy10", "out": f"{PLACE}/out"}
VARIABLES = {
    "NCCL_TOPO_FILE": f"{PLACE}/topo.xml", "NCCL_NET_PLUGIN": TOKEN, "TORCH_LOGIN": "https://ada:xyzzy@host/x",
    "NCCL_AUTH": "xyzzy", "GLOO_OPTIONS": "--password xyzzy --x 1", "CUDA_HEADER": "Authorization: Bearer xyzzy12345",
}  # fmt: skip
MESSAGES = [
    f"RuntimeError: 401 for {TOKEN}", "ValueError: cannot log in as ada with password=xyzzy",
    "ConnectionError: postgres://ada:xyzzy@host/db refused", 'KeyError: {"api_key": "xyzzy"}',
    "HTTPError: 403 for https://bucket.example/x?X-Amz-Signature=xyzzy&a=1",
    "RuntimeError: bad header Authorization: Bearer xyzzy12345", "OSError: -----BEGIN RSA PRIVATE KEY----- xyzzy",
    "RuntimeError: client failed: --token xyzzy --verbose",
]  # fmt: skip


def configuration(results: Path) -> dict[str, Any]:
    shared = {"workload": "script", "device": "cpu", "folder": f"{PLACE}/code", "python": f"{PLACE}/venv/bin/python"}
    figures = ["step_breakdown"]
    return {
        "results": str(results),
        "datasets": {"texts": {"source": "text-file", "path": f"{PLACE}/x.jsonl", "samples": "chat"}},
        "models": {"big": {"architecture": "llama3_8b", "folder": f"{PLACE}/weights"}},
        "scenarios": {
            "words": {
                "question": f"Is {HOME}/planted/data faster on {HOST} for ada@planted.example?",
                "fixed": shared | {"command": WORDS, "args": ARGS}, "vary": {"devices": [1, 2]}, "figures": figures,
            },
            "line": {
                "question": "?", "fixed": shared | {"command": LINE, "launcher": "command"},
                "vary": {"args": {"batch": [1, 2]}}, "figures": figures,
            },
        },
    }  # fmt: skip


def record_of(number: int) -> dict[str, Any]:
    """What a job records, by the functions that record it."""
    failed = {"outcome": "failed", "reason": Reason("error", rank=0, message=MESSAGES[number % len(MESSAGES)]).record()}
    return {
        **(failed if number else {}),
        "variables": settings(VARIABLES), "withheld": secrets_in(VARIABLES), "host": {"name": HOST, "system": "Linux"},
        "command": arguments_without_secrets(["/planted/bin/python", *WORDS]),
        "script": {"file": "train.py", "sha256": "ab" * 32, "commit": None, "modified": None},
    }  # fmt: skip


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("USER", "uplanted")
    experiment = check(configuration(tmp_path / "results"), "mine.yaml", outside=False)
    for scenario in experiment.scenarios:
        for devices, run in enumerate(expand_scenario(experiment, scenario)):
            changes = record_of(0) if scenario == "words" else {}
            folder = write_script_run(tmp_path / "results", run.parameters, 0.1 / (1 + devices), **changes)
            (folder / "log.txt").write_text(f"xyzzy {TOKEN} {PLACE}")
    return tmp_path / "results"


def text_of(content: bytes, name: str) -> str:
    if name.endswith(".parquet"):
        table = pq.read_table(pa.BufferReader(content))
        return repr((table.to_pylist(), table.schema.metadata)).lower()
    return content.decode("utf-8", "replace").lower()


def test_an_archive_holds_neither_secrets_nor_places(results: Path, tmp_path: Path) -> None:
    experiment = check(configuration(results), "mine.yaml", outside=False)
    assert len(pack(experiment, tmp_path / "mine.tar.gz").runs) == 4
    with tarfile.open(tmp_path / "mine.tar.gz") as archive:
        for member in archive:
            text = f"{member.name} {text_of(archive.extractfile(member).read(), member.name)}"
            found = re.findall(r".{0,30}(?:xyzzy|planted|zeta9|/home).{0,30}", text)
            assert not found, member.name
    read_results(tmp_path / "mine.tar.gz").draw(tmp_path / "drawn")  # it is still whole


HEAVY = ("mlflow", "wandb")  # whose packages take seconds to import


@pytest.mark.parametrize(
    "format_name", [pytest.param(name, marks=pytest.mark.slow) if name in HEAVY else name for name in EXPORT_FORMATS]
)
def test_exports_hold_no_secrets(format_name: str, results: Path, tmp_path: Path) -> None:
    for module in EXPORT_FORMATS[format_name].packages:
        pytest.importorskip(module)
    (tmp_path / "mine.yaml").write_text(json.dumps(configuration(results)))
    read = read_results(results, tmp_path / "mine.yaml")
    export(exported_runs(read.measures, read.steps), format_name, tmp_path / "exported")
    files = [tmp_path / "exported", *(tmp_path / "exported").rglob("*")]
    assert any(file.is_file() for file in files)
    for file in files:
        assert b"xyzzy" not in str(file).lower().encode()
        assert not file.is_file() or b"xyzzy" not in file.read_bytes().lower()


def test_tables_and_the_report_hold_no_secrets(results: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(json.dumps(configuration(results)))
    read = read_results(results, tmp_path / "mine.yaml")
    read.draw(tmp_path / "drawn")
    read.proposal(tmp_path / "proposal.md", Request(1e6, "samples"), "line")
    written = [file for file in tmp_path.glob("drawn/**/*") if file.is_file() and file.name != "run.json"]
    assert {"report.html", "recommendations.md", "measures.csv", "runs.csv"} <= {file.name for file in written}
    for file in [*written, tmp_path / "proposal.md"]:
        assert "xyzzy" not in text_of(file.read_bytes(), file.name), file
        assert "xyzzy" not in str(file)


@pytest.mark.parametrize("message", MESSAGES)
def test_a_reason_is_recorded_without_secrets(message: str) -> None:
    recorded = Reason("error", rank=0, message=message).record()["message"]
    assert "xyzzy" not in recorded.lower()
    assert recorded.startswith(message.partition(" ")[0])
    assert Reason("error", rank=0, message=recorded).record()["message"] == recorded


@pytest.mark.parametrize(
    "message",
    [
        "ValueError: unexpected token: <eos> in 3 tokens", "KeyError: 'token'", "expected key: question, found answer",
        "FileNotFoundError: /opt/sk-learn-1.2.3/x.py", "hf_trainer.py:12: max_tokens=512, pad_token='<pad>'",
        "ValueError: prompt_key=question, sort-key: length, key_dim=64", "see https://host/x?page=2",
    ],
)  # fmt: skip
def test_what_only_sounds_like_a_secret_stays(message: str) -> None:
    assert Reason("error", message=message).record()["message"] == message


def test_run_ids_hold_no_secrets(results: Path) -> None:
    names = [folder.name for folder in (results / "runs").iterdir()]
    assert len(names) == 4 and not any("xyzzy" in name for name in names)
    assert all(secret not in str(names) for secret in ("planted person",))
