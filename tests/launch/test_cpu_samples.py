"""Who else used the CPUs during a run: samples written by hand, a /proc made by hand, and the real one."""

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from multicard.launch.cpu_samples import (
    COLUMNS,
    CpuTimes,
    cpu_s_of_job,
    cpu_times,
    host_record,
    sample_cpus,
    take_samples,
)
from multicard.runs.record import NodeConditions

# Columns of /proc/stat in ticks of 10 ms: user, nice, system, idle, iowait, irq, softirq, steal, guest, guest_nice.
STAT = """\
cpu  9999 9999 9999 9999 9999 9999 9999 9999 0 0
cpu0 1000 100 500 9000 50 7 70 10 0 0
cpu1 5000 0 0 9000 0 0 0 0 0 0
cpu2 2000 0 300 9000 0 0 0 5 0 0
intr 123
"""


def test_busy_are_the_usable_cpus_in_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 2})
    monkeypatch.setattr(os, "sysconf", lambda _: 100)
    (tmp_path / "stat").write_text(STAT)
    assert cpu_times(tmp_path) == pytest.approx((16 + 23, 0.15))


def test_a_sample_of_others_is_what_the_cpus_did_less_the_job() -> None:
    def odd() -> CpuTimes:
        raise ValueError("an odd /proc")

    [row], _ = next(take_samples(lambda: CpuTimes(busy_s=100.0, stolen_s=1.0), lambda _: 30.0))
    assert (row["others_cpu_s"], row["stolen_cpu_s"]) == (70.0, 1.0)
    rows, _ = next(take_samples(odd))
    assert rows == []


def test_others_are_counted_in_the_samples_around_the_measured_steps(tmp_path: Path) -> None:
    # At 1, 2, … 9 s: others take all of a CPU from 4 to 6 s, and a tenth else; the hypervisor takes a hundredth.
    rows = [(t, 0.1 * t + 0.9 * min(max(t - 4, 0), 2), 0.01 * t, 4) for t in range(1, 10)]
    file = tmp_path / "samples.csv"
    file.write_text("\n".join([",".join(COLUMNS), *(",".join(map(str, row)) for row in rows), "10,9"]))
    run = {"others_cpu_s": pytest.approx(0.8 + 1.8), "stolen_cpu_s": pytest.approx(0.08), "wall_s": 8}
    found = host_record(file)
    assert {name: getattr(found, name) for name in run} == run and found.usable_cpus == 4
    # Two ranks, one of which ends later, in two epochs: from 2 to 5 s and from 7 to 8 s.
    found = host_record(file, [[2.5, 3.5], [7.2, 7.8], [2.6, 4.1], [7.3, 7.9]]).measured_steps
    assert (found.others_cpu_s, found.stolen_cpu_s, found.wall_s) == (pytest.approx(1.3), pytest.approx(0.04), 4)


@pytest.mark.parametrize("text", [None, "", ",".join(COLUMNS) + "\n"])
def test_where_nothing_was_sampled_nothing_is_known(text: str | None, tmp_path: Path) -> None:
    file = tmp_path / "samples.csv"
    if text is not None:
        file.write_text(text)
    assert host_record(file, [[1, 2]]) == NodeConditions()


# Computes for half a second of CPU time, then waits to be told to end.
COMPUTES = "import time\nwhile time.process_time() < 0.5: pass\nprint(flush=True)\ninput()"


@pytest.mark.skipif(not Path("/proc/stat").exists(), reason="needs Linux")
def test_a_process_of_the_job_counts_while_it_runs_and_after_it(tmp_path: Path) -> None:
    before, file = cpu_s_of_job(psutil.Process()), tmp_path / "samples.csv"
    with sample_cpus(file):
        began = time.monotonic()
        with subprocess.Popen([sys.executable, "-c", COMPUTES], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
            child.stdout.readline()
            while_it_runs = cpu_s_of_job(psutil.Process())
            child.communicate(b"\n")
        ended = time.monotonic()
    assert while_it_runs - before > 0.45
    assert cpu_s_of_job(psutil.Process()) >= while_it_runs - 0.05  # the clock ticks every 10 ms
    record = host_record(file, [[began, ended]])
    assert record.wall_s >= record.measured_steps.wall_s >= ended - began
    assert record.usable_cpus == len(os.sched_getaffinity(0))


@pytest.mark.skipif(not Path("/proc/stat").exists(), reason="needs Linux")
def test_a_process_that_is_not_of_the_job_counts_as_another() -> None:
    with subprocess.Popen(["sleep", "600"]) as launcher:
        others = cpu_times().busy_s - cpu_s_of_job(psutil.Process(launcher.pid))
        subprocess.run([sys.executable, "-c", COMPUTES], input=b"\n", check=True, stdout=subprocess.DEVNULL)
        assert cpu_times().busy_s - cpu_s_of_job(psutil.Process(launcher.pid)) - others > 0.4
        launcher.kill()
