"""A job ends within its limit and leaves no process behind."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from multicard.launch import supervise
from multicard.launch.cpu_samples import cpu_s_of_job
from multicard.launch.processes import JOB_MARK
from multicard.launch.watch import Limits, Ranks

# Starts a child in a session of its own, as the agent of nsys does, and says its id.
DETACH = (
    "import subprocess\n"
    "child = subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
    "print(child.pid, flush=True)\n"
)
SLEEP = "subprocess.Popen(['sleep', '600'], stdout=subprocess.DEVNULL)"
REPORT = (
    "import json, os, pathlib; pathlib.Path('part').write_text(json.dumps([os.getpid()])); "
    "os.rename('part', 'rank.json')"
)


IMPATIENT = Limits(signal_s=0.0)  # wait for no signal after a job has failed


def run(code: str, tmp_path: Path, limit: float = 600, **options: Any) -> tuple[supervise.Ended, list[str]]:
    """Run a program of Python in a folder, under a launcher of its own if that is given; also give what it printed."""
    lines: list[str] = []
    command = [sys.executable, "-c", code]
    options.setdefault("limits", IMPATIENT)
    if launcher := options.pop("launcher", None):
        first = options.setdefault("first_process", tmp_path / "first_process")
        command = [sys.executable, "-c", launcher, *supervise.in_profiler(command, first)]
    ended = supervise.run(
        command, dict(os.environ), tmp_path / "log.txt", limit, lines.append, folder=tmp_path, **options
    )
    assert (tmp_path / "log.txt").read_text() == "".join(f"{line}\n" for line in lines)
    return ended, lines


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_output_goes_to_the_log_and_to_the_listener(tmp_path: Path) -> None:
    code = "import os, sys; print(os.getcwd(), flush=True); print('two', file=sys.stderr); sys.exit(7)"
    ended, lines = run(code, tmp_path)
    assert (ended.exit_code, ended.timed_out) == (7, False)
    assert sorted(lines) == [str(tmp_path), "two"]


def test_a_detached_child_is_killed_with_the_job(tmp_path: Path) -> None:
    ended, [pid] = run(DETACH, tmp_path)
    assert ended.exit_code == 0
    assert gone(int(pid))


@pytest.mark.parametrize(
    "detaches",
    [
        "import subprocess\nchild = subprocess.Popen(['setsid', 'sleep', '600'], env={}, **quiet)\nprint(child.pid)\n",
        # Twice forked, in a session of its own, deaf to SIGTERM.
        "import os, signal, time\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork() == 0:\n"
        "        signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "        print(os.getpid(), flush=True)\n"
        "        os.execve('/bin/sleep', ['sleep', '600'], {})\n"
        "    os._exit(0)\n"
        "os.wait()\n",
    ],
    ids=["cleared", "daemon"],
)
def test_a_child_that_cleared_its_environment_is_ended_with_the_job(detaches: str, tmp_path: Path) -> None:
    quiet = "import subprocess\nquiet = dict(stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)\n"
    ended, [pid] = run(quiet + detaches, tmp_path, limits=replace(IMPATIENT, grace_s=0.5))
    assert ended.exit_code == 0
    assert gone(int(pid))


def test_a_process_of_no_descent_that_holds_the_output_keeps_no_launcher(tmp_path: Path) -> None:
    held: list[int] = []

    def hold(line: str) -> None:
        held.append(os.open(f"/proc/{line}/fd/1", os.O_WRONLY))

    job = "import os, sys; print(os.getpid(), flush=True); sys.stdin.read(); import time; time.sleep(1)"
    ended = supervise.run(
        [sys.executable, "-c", job], dict(os.environ), tmp_path / "log.txt", 600, hold, limits=Limits(read_s=0.1)
    )
    assert ended.exit_code == 0 and held
    os.close(held[0])


def reported(tmp_path: Path) -> Ranks:
    """How to tell that the only rank has run `REPORT`."""

    def ranks() -> set[int] | None:
        path = tmp_path / "rank.json"
        return set(json.loads(path.read_text())) if path.exists() else None

    return ranks


@pytest.mark.slow
@pytest.mark.parametrize(
    ("leaves", "is_wrapped"),
    [
        (DETACH, False),
        ("threading.Thread(target=time.sleep, args=[600]).start()", False),  # the rank itself does not exit
        ("pool = ProcessPoolExecutor(2); [pool.submit(time.sleep, 600) for _ in range(2)]", False),
        ("subprocess.Popen(['sleep', '600'])", True),  # which holds the output
    ],
    ids=["detached", "thread", "pool", "within a profiler that waits for all"],
)
def test_what_a_script_leaves_running_is_ended_soon_after_it_has_reported(
    leaves: str, is_wrapped: bool, tmp_path: Path
) -> None:
    code = f"import subprocess, threading, time\nfrom concurrent.futures import ProcessPoolExecutor\n{leaves}\n{REPORT}"
    profiler = "import subprocess, sys, time; subprocess.run(sys.argv[1:]); time.sleep(3); print('report')"
    launcher = profiler if is_wrapped else None
    limits = replace(IMPATIENT, exit_s=1.0, leave_s=1.0)
    ended, lines = run(code, tmp_path, launcher=launcher, ranks=reported(tmp_path), limits=limits)
    assert ended.wall_time_s < 300
    assert not ended.timed_out
    assert ("report" in lines) == is_wrapped, "the profiler itself is not ended"


def test_a_profiler_that_exits_before_its_job_does_not_take_it_with_it(tmp_path: Path) -> None:
    profiler = "import subprocess, sys; subprocess.Popen(sys.argv[1:])"
    job = f"import time; time.sleep(2); print('done', flush=True); {REPORT}"
    _, lines = run(job, tmp_path, launcher=profiler, ranks=reported(tmp_path))
    assert lines == ["done"]


@pytest.mark.slow
def test_a_rank_and_its_launcher_that_take_their_time_to_exit_are_not_left_behind(tmp_path: Path) -> None:
    """As on a busy machine: neither is ended before the rank has exited."""
    rank = f"import time\n{REPORT}\ntime.sleep(4)\nprint('rank done', flush=True)"
    launcher = (
        f"import subprocess, sys, time\nsubprocess.run([sys.executable, '-c', {rank!r}])\n{SLEEP}\ntime.sleep(600)"
    )
    ended, lines = run(launcher, tmp_path, 300, ranks=reported(tmp_path), limits=replace(IMPATIENT, leave_s=1.0))
    assert lines == ["rank done"]
    assert not ended.timed_out


def test_a_script_that_leaves_nothing_is_not_waited_for(tmp_path: Path) -> None:
    ended, _ = run(REPORT, tmp_path, 900, ranks=reported(tmp_path), limits=replace(IMPATIENT, leave_s=600.0))
    assert ended.exit_code == 0 and ended.wall_time_s < 300


def test_a_job_over_its_limit_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('x', flush=True); time.sleep(600)"
    ended, _ = run(deaf, tmp_path, limit=2, limits=replace(IMPATIENT, grace_s=0.5))
    assert ended.timed_out and ended.wall_time_s < 300
    assert ended.exit_code == -9


def test_a_job_is_started_without_python_between_fork_and_exec(tmp_path: Path, popen_options: dict[str, Any]) -> None:
    command = ["grep", "SigIgn", "/proc/self/status"]  # signals that it ignores
    as_it_is, lines = subprocess.run(command, capture_output=True, text=True, check=True), []
    popen_options.clear()
    supervise.run(command, dict(os.environ), tmp_path / "log.txt", 60, lines.append)
    assert popen_options["start_new_session"] and popen_options.get("preexec_fn") is None
    assert lines == as_it_is.stdout.splitlines()


def test_a_job_gets_the_variables_that_it_was_given_and_its_mark(tmp_path: Path) -> None:
    given = {"PATH": os.environ["PATH"], "NAME": "a=b"}  # and none that Python sets in the C locale
    lines: list[str] = []
    supervise.run(["env"], given, tmp_path / "log.txt", 60, lines.append)
    assert {"NAME=a=b", f"PATH={given['PATH']}"} < set(lines)
    assert {line.partition("=")[0] for line in lines} == {*given, JOB_MARK}


# A rank, as a profiler starts it that does not end it, and a child of the rank that is deaf and has no mark.
DEAF = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
rank = "import os, time; os.write(1, b'%d\\\\n' % os.getpid()); time.sleep(600)"
if os.fork() == 0:
    os.execvpe(sys.executable, [sys.executable, "-c", rank], os.environ)
subprocess.Popen([sys.executable, "-c", rank], env={}, start_new_session=True)
os.write(1, b"%d\\n" % os.getpid())
time.sleep(600)
"""


def wait_until_gone(pids: list[int]) -> None:
    deadline = time.monotonic() + 300
    while not all(map(gone, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert all(map(gone, pids))


@pytest.mark.parametrize("how", ["terminate", "kill"])
def test_a_job_does_not_outlive_its_launcher(tmp_path: Path, how: str) -> None:
    launcher = (
        "import os, sys; from pathlib import Path; from multicard.launch import supervise\n"
        "from multicard.launch.watch import Limits\n"
        f"supervise.run([sys.executable, '-c', {DEAF!r}], dict(os.environ), Path({str(tmp_path / 'log.txt')!r}), 600, "
        "lambda line: print(line, flush=True), limits=Limits(grace_s=0.5))\n"
    )
    started = subprocess.Popen([sys.executable, "-c", launcher], stdout=subprocess.PIPE, text=True)
    job = [int(started.stdout.readline()) for _ in range(3)]
    getattr(started, how)()
    started.wait(timeout=300)
    wait_until_gone(job)


def test_a_job_whose_keeper_is_killed_is_ended_and_not_waited_for(tmp_path: Path) -> None:
    lines: list[str] = []

    def kill_keeper(line: str) -> None:
        lines.append(line)
        psutil.Process(int(line)).parent().kill()

    code = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
    ended = supervise.run([sys.executable, "-c", code], dict(os.environ), tmp_path / "log.txt", 600, kill_keeper)
    assert ended.exit_code == -signal.SIGKILL and not ended.timed_out
    assert gone(int(lines[0]))


def test_a_script_that_signals_its_own_group_reaches_the_job_alone(tmp_path: Path) -> None:
    ended, lines = run("import os, signal; print('x', flush=True); os.killpg(0, signal.SIGKILL)", tmp_path)
    assert (ended.exit_code, lines) == (-signal.SIGKILL, ["x"])


def test_a_command_that_cannot_be_started_says_so_in_one_line(tmp_path: Path) -> None:
    lines: list[str] = []
    ended = supervise.run(["/no/such/program"], dict(os.environ), tmp_path / "log.txt", 600, lines.append)
    assert (ended.exit_code, lines) == (127, ["/no/such/program: No such file or directory"])


def tell(number: signal.Signals) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.usefixtures("hangup_ends")
@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_does_not_interrupt_the_cleanup(tmp_path: Path, second: signal.Signals) -> None:
    # The job takes its time to end, and its launcher is told again meanwhile: when it says so.
    job = (
        "import os, signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: (print('ending', flush=True), "
        "time.sleep(0.5), print('ended', flush=True), os._exit(0))); print('ready', flush=True); time.sleep(600)"
    )
    told = {"ready": signal.SIGHUP, "ending": second}
    lines: list[str] = []

    def follow(line: str) -> None:
        lines.append(line)
        if line in told:
            tell(told[line])

    with pytest.raises(SystemExit) as raised:
        supervise.run([sys.executable, "-c", job], dict(os.environ), tmp_path / "log.txt", 600, follow)
    assert raised.value.code == 128 + signal.SIGHUP
    assert lines == ["ready", "ending", "ended"]


def test_a_signal_that_ends_the_job_first_and_then_its_launcher_is_no_failure_of_the_job(tmp_path: Path) -> None:
    limits = Limits(signal_s=300.0)
    job = "import os, signal; print(os.getpid(), flush=True); os.kill(os.getpid(), signal.SIGTERM)"

    def follow(line: str) -> None:
        while not gone(int(line)):
            time.sleep(0.01)
        tell(signal.SIGTERM)

    with pytest.raises(SystemExit):
        supervise.run([sys.executable, "-c", job], dict(os.environ), tmp_path / "log.txt", 600, follow, limits=limits)


# Starts a process that is nobody's child any more, as a profiler starts its agent, and ends when that has computed for
# some seconds.
ORPHAN = """
import os, subprocess, sys, time
code = "import time\\nwhile time.process_time() < SECONDS: pass\\nopen('done', 'w').close()"
if os.fork() == 0:
    subprocess.Popen([sys.executable, "-S", "-c", code], start_new_session=True, stdout=subprocess.DEVNULL)
    os._exit(0)
os.wait()
while not os.path.exists("done"):
    time.sleep(0.01)
time.sleep(0.2)
"""


@pytest.mark.slow
def test_the_cpu_time_of_a_process_that_detached_counts_as_the_jobs(tmp_path: Path) -> None:
    spent = []
    for seconds in ("0.5", "0"):  # the rest is the start of two interpreters
        before = cpu_s_of_job(psutil.Process())
        assert run(ORPHAN.replace("SECONDS", seconds), tmp_path)[0].exit_code == 0
        spent.append(cpu_s_of_job(psutil.Process()) - before)
        (tmp_path / "done").unlink()
    assert spent[0] - spent[1] > 0.3
