"""Times the steps of a training script that knows nothing of it, from inside the script's processes.

Switched on by the variable `MULTICARD_OBSERVE`, the path of job.json, in every Python process whose `PYTHONPATH` begins
with a folder that holds `site/sitecustomize.py` and a link `multicard` to this package (`OBSERVER_SITE`).

job.json has the keys `scratch` (folder of this node where ranks leave their files), `profiler` (resolved, not `auto`),
`launcher` (process that starts the job on this node, or null) and `observe` with
  `device` (cpu, cuda), `devices`, `devices_per_node`, `ranks`, `ranks_per_node`;
  `ablate` (parts that the run goes without; see `ablation`): loader, communication, host, this with loader;
  `warmup_steps`, `measured_steps` (null where the program states its steps by
  `multicard.marks.training`), `profiled_steps`;
  `program` (names that a rank's program may go by), `is_user_program` (false of a program of multicard's own), and of a
  user's `samples_per_step` (global, or null) and `count_operations`;
  `memory_snapshot` (whether the history of GPU memory is recorded; see `multicard.record.memory_snapshot`).

What is left in `scratch`, by the functions of `multicard.core.layout`:
  `steps.csv.rank<N>`; `epochs.csv.rank<N>` of a program that marks its epochs;
  `rank.json.rank<N>`: outcome, reason and facts of the rank, among them `observed` and `trace_problem` (why the
  profiler left no trace; null where it did);
  `memory_snapshot.pickle.rank<N>`: of a rank that ran out of GPU memory, where that is asked for;
  `made.rank<N>`: how many steps the rank has made so far, whatever becomes of it;
  `process.json.<pid>`: of every Python process, as soon as it starts: `pid`, `ppid`, `python` (version), `torch`
  (version; null until it is imported), `program` (file or module that it runs), `told` and `rank` (the variable by
  which a launcher told it, and that number; or null), `steps` (whether an optimizer stepped) and `error` (null, or
  `outcome` and `reason` as in rank.json, of a process that raised before its first step);
  `claimed.rank<N>`: the process that is rank N: the first that takes itself for it and steps an optimizer, or fails
  before, unless a rank started it. Another one that takes itself for it leaves no rank.json.

It needs Python 3.10, PyTorch 2.5 and the standard library.
"""

import os
import shutil
from pathlib import Path

from multicard.core.layout import JOB

OBSERVE = "MULTICARD_OBSERVE"  # the variable
OBSERVER_SITE = Path(__file__).with_name("site") / "sitecustomize.py"
PACKAGE = Path(__file__).parents[2]
PARTS = ("core", "profilers", "record")  # of this package, which the observer imports
NO_CACHE = shutil.ignore_patterns("__pycache__")


def observer_variables(scratch: Path, has_own_copy: bool = True) -> dict[str, str]:
    """Variables by which Python runs the observer in every process of a job; the folder that they name is made.

    The observer is copied to the job's `scratch` folder if it `has_own_copy`: a container need not show the folder that
    multicard is installed in, and the script's environment may have none or another one.
    """
    observer = scratch.absolute() / "observer"
    observer.mkdir(exist_ok=True)
    shutil.copyfile(OBSERVER_SITE, observer / OBSERVER_SITE.name)
    if has_own_copy:
        for part in PARTS:
            shutil.copytree(PACKAGE / part, observer / PACKAGE.name / part, ignore=NO_CACHE)
        for file in PACKAGE.glob("*.py"):
            shutil.copy2(file, observer / PACKAGE.name)
    path = os.pathsep.join(filter(None, (str(observer), os.environ.get("PYTHONPATH"))))
    return {OBSERVE: str(scratch.absolute() / JOB), "PYTHONPATH": path}
