"""Times the steps of a training script that knows nothing of it, from inside the script's processes.

Switched on by the variable `MULTICARD_OBSERVE`, the path of job.json, in every Python process whose `PYTHONPATH` begins
with a folder that holds `site/sitecustomize.py` and a link `multicard` to this package (`OBSERVER_SITE`).

job.json has the keys `scratch` (folder of this node where ranks leave their files), `profiler` (resolved, not `auto`),
`launcher` (process that starts the job on this node, or null) and `observe` with
  `device` (cpu, cuda), `devices`, `ranks`, `ranks_per_node`;
  `warmup_steps`, `measured_steps`, `profiled_steps`;
  `samples_per_step` (global, or null).

What is left in `scratch`, by the functions of `multicard.core.layout`:
  `steps.csv.rank<N>`, `rank.json.rank<N>`: as every rank leaves them (`multicard.record.rank`), rank.json with the
  further keys `observed`, `trace_problem` (why the profiler left no trace; null where it did) and `ignored_exit` (true
  where the script went on after it was asked to end);
  `made.rank<N>`: how many steps the rank has made so far, whatever becomes of it;
  `process.json.<pid>`: of every Python process, as soon as it starts: `pid`, `ppid`, `python` (version), `torch`
  (version; null until it is imported), `program` (file or module that it runs), `rank` (as a launcher told it, or
  null), `steps` (whether an optimizer stepped) and `error` (null, or `outcome` and `reason` as in rank.json, of a
  process that raised before its first step);
  `claimed.rank<N>`: the process that is rank N: the first that takes itself for it and steps an optimizer, or fails
  before, unless a rank started it. Another one that takes itself for it leaves no rank.json, and ends as soon as there
  is that of the first.

It needs Python 3.10, PyTorch 2.1 and the standard library.
"""

from pathlib import Path

OBSERVE = "MULTICARD_OBSERVE"  # the variable
OBSERVER_SITE = Path(__file__).with_name("site") / "sitecustomize.py"
