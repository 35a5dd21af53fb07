"""A pipeline that is told to end cleans up, however often it is told."""

import signal
import subprocess
import sys

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
