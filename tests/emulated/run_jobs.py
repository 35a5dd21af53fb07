"""Runs jobs one after the other: `main()` with the path of a request.

Each job goes through `multicard.launch.job.run_job` to its measures. Ranks are forked from a process that has imported
the modules `preload` of the request (forked_ranks.py), with `on_gpus` where there are GPUs too. Of each of its `jobs`
the request has `parameters`, `data`, `folder`, `model` and `program`, a module that takes the place of the workload's,
or null.
"""

import json
from pathlib import Path
from unittest.mock import patch

from forked_ranks import forked_ranks
from multicard.config.read_run import read_run
from multicard.core.files import write_json
from multicard.launch import job
from multicard.programs import PROGRAMS
from multicard.results.measure import measure_run
from multicard.trace.export import export_run
from multicard.trace.extract import extract_run
from stand_ins import standing_in

TIME_LIMIT_S = 1800  # of a job; a busy machine must not end it


def main(request: str) -> None:
    """Run the jobs of the request; beside its record each run directory gets `measures.json`."""
    asked = json.loads(Path(request).read_text())
    with forked_ranks(asked["preload"], asked["on_gpus"]):
        for stated in asked["jobs"]:
            name = stated["parameters"].get("workload", "vision")
            parameters, folder = PROGRAMS[name].parameters(**stated["parameters"]), Path(stated["folder"])
            model = Path(stated["model"]) if stated["model"] else None
            program = standing_in(stated["program"], name) if stated["program"] else PROGRAMS[name]
            with patch.dict(PROGRAMS, {name: program}):
                job.run_job(parameters, Path(stated["data"]), folder, TIME_LIMIT_S, model)
            export_run(folder)
            extract_run(folder, read_run(folder).ranks)
            write_json(folder / "measures.json", measure_run(folder))
