"""Time the steps of an unchanged training script, from inside the script's processes.

Switched on by the variable `MULTICARD_OBSERVE`, the path of job.json, in every Python process whose `PYTHONPATH` begins
with a folder that holds `site/sitecustomize.py` and a link `multicard` to this package (`OBSERVER_SITE`).

job.json has the keys `scratch` (folder of this node where ranks write their files), `profiler` (resolved, not `auto`),
`launcher` (process that starts the job on this node, or null) and `observe` with
  `device` (cpu, cuda), `devices`, `devices_per_node`, `ranks`, `ranks_per_node`;
  `ablate` (parts that the run goes without; see `ablation`): loader, communication, host (only together with loader);
  `warmup_steps`, `measured_steps` (null where the program states its steps by
  `multicard.marks.training`), `profiled_steps`;
  `program` (file names and modules by which a rank's program may be started), `is_user_program` (false for a program of
  multicard's own), and for a user's program `samples_per_step` (global, or null) and `count_operations`;
  `memory_snapshot` (true if the history of GPU memory is recorded; see `multicard.record.memory_snapshot`).

The observer writes to `scratch`, with names by `multicard.core.layout`:
  `steps.csv.rank<N>`; `epochs.csv.rank<N>` if the program marks its epochs;
  `rank.json.rank<N>`: outcome, reason and facts of the rank, among them `observed` and `trace_problem` (why the
  profiler left no trace; null if it left one);
  `memory_snapshot.pickle.rank<N>` if the rank ran out of GPU memory, and the job asks for it;
  `made.rank<N>`: number of steps that the rank has made so far, which can be read at any time;
  `process.json.<pid>` for every Python process, as soon as it starts: `pid`, `ppid`, `python` (version), `torch`
  (version; null until it is imported), `program` (file or module that it runs), `told` and `rank` (the variable in
  which a launcher gave it its rank, and the rank; or null), `steps` (true if an optimizer stepped) and `error` (null,
  or `outcome` and `reason` as in rank.json, if the process raised before its first step);
  `claimed.rank<N>`: the process that is rank N: the first one with that number that steps an optimizer, or fails
  before, unless a rank started it. Another one with the same number writes no rank.json.

Modules, in the order of what happens: `hooks` reports to `observer`, which keeps `updates` and `training_loop` and
reports the ends of steps to `observed_process`. That dispatches on the states of `lifecycle`: `recording` times steps
(`events`, `phases`, `ranges`) in the windows of `plan`; `leaving` and `failure` write the record.

It needs Python 3.10, PyTorch 2.5 and the standard library.
"""

import os
import shutil
from pathlib import Path

from multicard.core.layout import JOB

OBSERVE = "MULTICARD_OBSERVE"  # variable with the path of job.json
OBSERVER_SITE = Path(__file__).with_name("site") / "sitecustomize.py"
PACKAGE = Path(__file__).parents[2]
PARTS = ("core", "profilers", "record")  # sub-packages that the observer imports


def observer_variables(scratch: Path, has_own_copy: bool = True) -> dict[str, str]:
    """Return the variables by which Python runs the observer in every process of a job, and make the folder they name.

    The observer is copied to the job's `scratch` folder if it `has_own_copy`: a container need not show the folder that
    multicard is installed in, and the script's environment may have no multicard, or another one.
    """
    no_cache = shutil.ignore_patterns("__pycache__")
    observer = scratch.absolute() / "observer"
    observer.mkdir(exist_ok=True)
    shutil.copyfile(OBSERVER_SITE, observer / OBSERVER_SITE.name)
    if has_own_copy:
        for part in PARTS:
            shutil.copytree(PACKAGE / part, observer / PACKAGE.name / part, ignore=no_cache)
        for file in PACKAGE.glob("*.py"):
            shutil.copy2(file, observer / PACKAGE.name)
    python_path = str(observer)
    if os.environ.get("PYTHONPATH"):
        python_path += os.pathsep + os.environ["PYTHONPATH"]
    return {OBSERVE: str(scratch.absolute() / JOB), "PYTHONPATH": python_path}
