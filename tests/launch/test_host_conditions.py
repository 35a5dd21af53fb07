"""Who else used the CPUs during a run, from a /proc made by hand and from the real one."""

import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from multicard.launch.conditions import HostConditions

# Columns of /proc/stat in ticks of 10 ms: user, nice, system, idle, iowait, irq, softirq, steal, guest, guest_nice.
BEFORE = """\
cpu  9999 9999 9999 9999 9999 9999 9999 9999 0 0
cpu0 1000 100 500 9000 50 7 70 10 0 0
cpu1 5000 0 0 9000 0 0 0 0 0 0
cpu2 2000 0 300 9000 0 0 0 5 0 0
intr 123
"""
AFTER = """\
cpu  99999 9999 9999 9999 9999 9999 9999 9999 0 0
cpu0 1600 200 600 9300 90 99 990 40 0 0
cpu1 9000 0 0 9000 0 0 0 900 0 0
cpu2 2400 0 400 9500 0 0 0 15 0 0
intr 456
"""
CPUINFO = "processor : 0\ncpu MHz\t\t: 2000.000\nprocessor : 1\ncpu MHz\t\t: 3000.500\n"


def test_cpu_time_of_others_is_what_the_usable_cpus_did_less_the_runs_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = {resource.RUSAGE_SELF: 1.0, resource.RUSAGE_CHILDREN: 20.0}
    usage = lambda who: SimpleNamespace(ru_utime=own[who], ru_stime=own[who] / 2)  # noqa: E731
    monkeypatch.setattr(resource, "getrusage", usage)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 2})
    monkeypatch.setattr(os, "sysconf", lambda name: 100)
    monkeypatch.setattr(os, "getloadavg", lambda: (1.5, 9.0, 9.0))
    monkeypatch.setattr(time, "monotonic", lambda: own[resource.RUSAGE_CHILDREN])

    (tmp_path / "stat").write_text(BEFORE)
    (tmp_path / "cpuinfo").write_text(CPUINFO)
    conditions = HostConditions(tmp_path)
    (tmp_path / "stat").write_text(AFTER)
    own |= {resource.RUSAGE_SELF: 1.2, resource.RUSAGE_CHILDREN: 24.0}
    record = conditions.record()
    # By hand: cpu0 600 + 100 + 100 and cpu2 400 + 100 ticks are 13 s, of which 0.2 · 1.5 + 4 · 1.5 are the run's.
    assert record["others_cpu_s"] == pytest.approx(13 - 6.3)
    assert record["stolen_cpu_s"] == pytest.approx(0.3 + 0.1)
    assert (record["wall_s"], record["usable_cpus"]) == (4.0, 2)
    assert record["before"] == record["after"] == {"cpu_frequency_mhz": 2500.25, "load_average": 1.5}


def test_where_the_system_does_not_tell_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "getloadavg")
    monkeypatch.delattr(os, "sched_getaffinity")
    record = HostConditions(tmp_path).record()
    assert record.pop("wall_s") >= 0
    nothing = {"cpu_frequency_mhz": None, "load_average": None}
    unknown = dict.fromkeys(("others_cpu_s", "stolen_cpu_s", "usable_cpus"))
    assert record == {"before": nothing, "after": nothing, **unknown}
    for text in ("", "cpu0 1 2\n", "cpu0 a b c d e f g h\n", "\udcff"):  # an odd /proc
        for name in ("stat", "cpuinfo"):
            (tmp_path / name).write_text(text, errors="surrogateescape")
        assert HostConditions(tmp_path).record()["others_cpu_s"] is None


# Computes for half a second of CPU time, then waits to be told to end.
COMPUTES = "import time\nwhile time.process_time() < 0.5: pass\nprint(flush=True)\ninput()"


@pytest.mark.skipif(not Path("/proc/stat").exists(), reason="needs Linux")
def test_a_process_that_is_not_of_the_run_counts_as_another() -> None:
    conditions = HostConditions()
    with subprocess.Popen([sys.executable, "-c", COMPUTES], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        other.stdout.readline()
        record = conditions.record()  # nobody has waited for it yet, so it is no part of the run
        other.communicate(b"\n")
    # Two readings, each of a clock of 10 ms, on at most a few CPUs that it ran on.
    assert record["others_cpu_s"] > 0.4
    assert record["before"]["load_average"] >= 0
