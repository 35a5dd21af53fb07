"""A pipeline that is told to end cleans up, however often it is told."""

import signal
import subprocess
import sys
from pathlib import Path

from multicard.workflow.submission import WAITING

PIPELINE = """
import time
from multicard.workflow.signals import end_as_by_ctrl_c
end_as_by_ctrl_c()
try:
    print("working", flush=True)
    time.sleep(600)
except KeyboardInterrupt:
    print("cleaning up", flush=True)
    for _ in range(20):
        time.sleep(0.05)
    print("cleaned up", flush=True)
"""


def test_a_pipeline_that_is_told_to_end_submits_no_more(tmp_path: Path) -> None:
    (tmp_path / WAITING).mkdir(parents=True)
    program = PIPELINE.replace("end_as_by_ctrl_c()", f"end_as_by_ctrl_c(__import__('pathlib').Path({str(tmp_path)!r}))")
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as pipeline:
        assert pipeline.stdout.readline() == "working\n"
        pipeline.send_signal(signal.SIGTERM)
        _, errors = pipeline.communicate(timeout=300)
    assert "this directory stays locked" in errors
    assert not (tmp_path / WAITING).exists()


def test_a_second_ctrl_c_does_not_interrupt_the_cleaning_up() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PIPELINE], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as pipeline:
        assert pipeline.stdout.readline() == "working\n"
        pipeline.send_signal(signal.SIGINT)
        assert pipeline.stdout.readline() == "cleaning up\n"
        pipeline.send_signal(signal.SIGINT)
        pipeline.send_signal(signal.SIGTERM)
        said, errors = pipeline.communicate(timeout=300)
    assert said == "cleaned up\n"
    [line] = errors.splitlines()
    assert f"kill -9 {pipeline.pid}" in line
