"""What is wrong with a file of claims or measures is named, and the command prints every verdict."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from claim_worlds import TRUE
from synthetic_results import images, make_results

from conftest import ROOT
from multicard.analysis.claims import read_claims
from multicard.analysis.evidence import read_evidence
from multicard.cli import main
from multicard.core.errors import UserError


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("claims: 3", "expected a list of claims, found dict"),
        ([{"id": "a"}], "a.claim: missing"),
        ({"tests": [{"kind": "compare"}]}, "a.tests.0.statement: missing"),
        ({"tests": [{"kind": "guess"}]}, "tests.0"),
        ({"hardware": "tpu"}, "a.hardware: found 'tpu'"),
        ({"size": {"audio": {}}}, "a.size.audio"),
        ({"refuted_if": ""}, "a.refuted_if: found ''"),
        ({"max_data_share": 10}, "a.tests.0.max_data_share: found 10"),
        ({"colour": "red"}, "a.colour: unknown key"),
        ({"above": None}, "expected a limit"),
        ({"above": 2.0, "below": 1.0}, "above (2.0) must be less than below (1.0)"),
        ({"where": {"colour": 1}}, "'colour' is neither a parameter nor a measure"),
        ({"kind": "api_time", "functions": "("}, "is not a regular expression"),
    ],
)
def test_a_faulty_claims_file_is_refused_by_lines_that_name_the_key(content: Any, said: str, tmp_path: Path) -> None:
    test = {"statement": "s", "kind": "efficiency", "where": {}, "above": 1.0}
    claim = {"id": "a", "claim": "c", "paper": "A", "source": "s", "hardware": "gpu", "refuted_if": "r"}
    if isinstance(content, dict):
        keys = ("above", "below", "where", "kind", "functions", "max_data_share")
        in_test = {key: value for key, value in content.items() if key in keys}
        content = [claim | {"tests": [test | in_test]} | {k: v for k, v in content.items() if k not in in_test}]
    path = tmp_path / "claims.yaml"
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    with pytest.raises(UserError) as refused:
        read_claims(path)
    lines = str(refused.value).splitlines()
    assert all(line.startswith(f"{path}: ") for line in lines)
    assert any(said in line for line in lines), lines


def test_a_claim_that_is_listed_twice_is_refused(tmp_path: Path) -> None:
    text = (ROOT / "resources" / "claims.yaml").read_text(encoding="utf-8")
    path = tmp_path / "claims.yaml"
    path.write_text(text + "\n" + text[text.index("- id: mnist_accuracy") :])
    with pytest.raises(UserError, match="mnist_accuracy is listed twice"):
        read_claims(path)


def test_a_damaged_measures_file_is_named(tmp_path: Path) -> None:
    results = make_results(tmp_path, images(100))
    (results / "scenarios" / "s0" / "measures.csv").write_text("run,outcome\nx,completed\n")
    with pytest.raises(UserError, match=r"measures\.csv: found no column workload"):
        read_evidence(results)


def test_the_command_prints_every_verdict_and_counts_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scenarios, tables = TRUE["nhwc_gain"]
    results = make_results(tmp_path, *scenarios, tables=tables)
    main(["claims", str(results), "--claims", str(ROOT / "resources" / "claims.yaml")])
    printed = capsys.readouterr().out
    assert "nhwc_gain: confirmed" in printed
    assert printed.splitlines()[-1] == "11 not measured here, 1 confirmed"
