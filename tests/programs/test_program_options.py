"""Parameters on the command line of multicard's own training programs."""

import argparse

import pytest

from multicard.programs.llm.parameters import LlmParameters
from multicard.programs.options import options_of, parse_options
from multicard.programs.vision.parameters import VisionParameters
from multicard.runs.parameters import JobParameters

VISION = {"strategy": "ddp-ds", "devices": 2, "learning_rate": 1e-05, "steps_per_epoch": 3, "dataset": "123"}


@pytest.mark.parametrize(
    "p",
    [
        VisionParameters(**VISION, preset="tuned", pin_memory=False, tf32="default", persistent_workers=False),
        LlmParameters(learning_rate=3e-4, packed=True, ablate="loader+communication", repeat=3),
    ],
    ids=["vision", "llm"],
)
def test_options_state_the_parameters_that_they_were_made_of(p: JobParameters) -> None:
    parsed, _ = parse_options(argparse.ArgumentParser(), type(p), options_of(p))
    assert parsed == p


def test_booleans_may_be_written_as_python_writes_them() -> None:
    p, _ = parse_options(argparse.ArgumentParser(), VisionParameters, ["--pin-memory=True", "--compile=false"])
    assert (p.pin_memory, p.compile) == (True, False)


@pytest.mark.parametrize(
    ("word", "line"),
    [
        ("--batch-size=many", "argument --batch-size: found 'many', expected a number, true, false or null"),
        ("--devices=2.0", "devices: found 2.0, expected a whole number"),
        ("--strategy=dpp", "strategy: found 'dpp', expected one of single, dp, ddp, ddp-ds, fsdp"),
        ("--batch-siz=3", "unrecognized arguments: --batch-siz=3"),
    ],
)
def test_what_does_not_fit_is_said_in_a_line(word: str, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse_options(argparse.ArgumentParser(prog="train"), VisionParameters, [word])
    assert ended.value.code == 2
    assert capsys.readouterr().err.splitlines()[-1] == f"train: error: {line}"
