"""Time the steps of an unchanged training script, from inside the script's processes.

The observer runs in every Python process of a job, because of two variables (`observer_variables`):
`MULTICARD_OBSERVE` is the path of job.json, and `PYTHONPATH` begins with a folder that has a copy of
`site/sitecustomize.py` and of the needed parts of multicard.

The observer reads job.json (`multicard.core.job_file`): `scratch`, `profiler`, `time_limit_s`, and all of `observe`.

The observer writes these files to `scratch`, with names from `multicard.core.layout`:
  `steps.csv.rank<N>`; `epochs.csv.rank<N>` if the program marks its epochs;
  `rank.json.rank<N>`: outcome, reason and facts of the rank, among them `observed` and `trace_problem` (why the
  profiler left no trace; null if it left one);
  `memory_snapshot.pickle.rank<N>` if the rank ran out of GPU memory, and the job asks for it;
  `made.rank<N>`: number of steps that the rank has made so far, which can be read at any time;
  `process.json.<pid>` for every Python process, as soon as it starts (one that multiprocessing starts writes it only
  when it first updates or fails):
    `pid`, `ppid`, `python` (version), `torch` (version; null until it is imported);
    `program` (file or module that it runs);
    `told` (variable in which a launcher gave the process its rank, such as "RANK=0", or null);
    `rank` (that rank, or null; after the first update, the rank by `ranks.rank_of_process`);
    `steps` (true after the first update or mark, else false);
    `backward` (true after a backward pass before which no optimizer had updated, else missing);
    `error` (`outcome` and `reason` as in rank.json, if the process raised before its first step; else null);
  `claimed.rank<N>`: pid of the process that is rank N: the first process of this rank that updates, or that fails
  before it updates. A process that another one of the same rank has started cannot claim the rank by a failure. A
  process that finds its rank claimed writes no rank.json.

Modules, in the order of what happens: `hooks` reports to `observer`, which keeps `updates` and `training_loop`, and
reports the ends of steps to `observed_process`. This one changes between the states of `lifecycle`. `recording` times
steps (`events`, `phases`, `ranges`) in the windows of `plan`. `training_setup` counts backward passes, and reads after
the measured steps how the script trains. `leaving` and `failure` write the record.

It needs Python 3.10, PyTorch 2.4 and the standard library.
"""

import os
import shutil
from pathlib import Path

from multicard.core.layout import JOB

OBSERVE = "MULTICARD_OBSERVE"  # variable with the path of job.json
OBSERVER_SITE = Path(__file__).with_name("site") / "sitecustomize.py"
PACKAGE = Path(__file__).parents[1]
PARTS = ("core", "profilers", "observe")  # sub-packages that the observer imports


def observer_variables(scratch: Path) -> dict[str, str]:
    """Make the observer's folder in `scratch`; return the variables by which all processes of a job run the observer.

    The folder has a copy of sitecustomize.py, which Python runs as it starts, and of the parts of multicard that the
    observer imports, because a container may not show the folder that multicard is installed in, and the program's
    environment may have no multicard, or another version of it. If the program imports other parts of multicard, Python
    finds them in the multicard that is installed in that environment (`multicard.__path__`).
    """
    observer = scratch.absolute() / "observer"
    observer.mkdir(exist_ok=True)
    shutil.copyfile(OBSERVER_SITE, observer / OBSERVER_SITE.name)
    sources = [*PACKAGE.glob("*.py"), *(file for part in PARTS for file in (PACKAGE / part).rglob("*.py"))]
    # File by file: the error of `shutil.copytree` does not tell whether the disk is full.
    for source in sources:
        copy = observer / source.relative_to(PACKAGE.parent)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, copy)
    python_path = str(observer)
    if os.environ.get("PYTHONPATH"):
        python_path += os.pathsep + os.environ["PYTHONPATH"]
    return {OBSERVE: str(scratch.absolute() / JOB), "PYTHONPATH": python_path}
