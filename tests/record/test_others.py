"""Who else used the CPUs while measured steps ran, from a /proc made by hand and from the real one."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from multicard.core.cpu_time import with_descendants
from multicard.record.others import OthersMeter

LAUNCHER = 100


def write(proc: Path, cpu: tuple[int, int], **processes: tuple[int, int, int, int]) -> None:
    """Write ticks of a CPU, in processes and stolen, and per process its parent, and its and its dead children's."""
    (proc / "stat").write_text(f"cpu0 {cpu[0]} 0 0 9 9 9 9 {cpu[1]} 0 0\n")
    for name, (parent, user, system, waited) in processes.items():
        folder = proc / name.removeprefix("p")
        folder.mkdir(exist_ok=True)
        # Fields of proc(5) from the state on; a name may hold what ends it.
        (folder / "stat").write_text(f"{folder.name} (a) b) S {parent} {'0 ' * 9}{user} {system} {waited} 0 20 0")


def test_what_is_left_of_the_cpus_after_the_job_was_used_by_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0})
    monkeypatch.setattr(os, "sysconf", lambda name: 100)
    clock = iter([5.0, 15.0, 20.0, 30.0])
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    meter = OthersMeter(LAUNCHER, tmp_path)
    write(tmp_path, (1000, 10), p1=(0, 7000, 0, 0), p100=(1, 50, 10, 0), p101=(100, 100, 0, 0), p102=(101, 30, 0, 0))
    meter.start()
    # Another process takes 300 ticks, the job 1 + 200 + 40: its grandchild has ended, with 70, and was waited for.
    (tmp_path / "102" / "stat").unlink()
    write(tmp_path, (1541, 25), p1=(0, 7300, 0, 0), p100=(1, 51, 10, 0), p101=(100, 300, 0, 70))
    meter.stop()
    # Between the intervals another 9000.
    write(tmp_path, (10541, 25), p1=(0, 16300, 0, 0))
    meter.start()
    write(tmp_path, (10641, 25), p101=(100, 400, 0, 70))
    meter.stop()
    assert meter.record() == pytest.approx({"others_cpu_s": 3.0, "stolen_cpu_s": 0.15, "wall_s": 20.0})


def test_nothing_is_metered_without_the_launcher(tmp_path: Path) -> None:
    for meter in (OthersMeter(None), OthersMeter(LAUNCHER, tmp_path)):
        meter.start()
        meter.stop()
        assert meter.record() is None


COMPUTES = "import time\nwhile time.process_time() < 0.5: pass\nprint(flush=True)\ninput()"


@pytest.mark.skipif(not Path("/proc/stat").exists(), reason="needs Linux")
def test_the_cpu_time_of_a_process_counts_while_it_runs_and_after_it() -> None:
    before = with_descendants(os.getpid())
    with subprocess.Popen([sys.executable, "-c", COMPUTES], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        child.stdout.readline()
        while_it_runs = with_descendants(os.getpid())
        child.communicate(b"\n")
    after = with_descendants(os.getpid())
    assert while_it_runs - before > 0.45
    assert after >= while_it_runs - 0.05  # the clock ticks every 10 ms
    assert with_descendants(2**30) is None
