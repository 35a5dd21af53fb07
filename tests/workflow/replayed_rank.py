"""A rank that trains nothing: it leaves again what the first rank of a finished run left, without PyTorch.

It is run in the place of the program that trains, by a copy of this file that has `replay.json` beside it.
"""

import csv
import json
import os
import shutil
import sys
import time
from pathlib import Path

# Found by every interpreter of a pipeline; it changes the one that launches a run.
SITE = """
import sys
if any(part.endswith("launch_run.py") for part in sys.orig_argv):
    from dataclasses import replace
    from multicard.programs import PROGRAMS

    vision = PROGRAMS["vision"]

    def command(p, paths):
        own = vision.command(p, paths)
        return replace(own, words=["-m", "replayed_rank", *own.words[2:]])

    PROGRAMS["vision"] = replace(vision, command=command)
"""
DIVERGES = 1e30  # a learning rate


def replaying(folder: Path, finished: Path, ends: Path | None = None) -> dict[str, str]:
    """Variables of a pipeline whose runs, on one device and without a profiler, replay the finished one.

    With `ends`, a file, a run resumes from its checkpoint once fewer runs have ended than the number in it.
    """
    folder.mkdir()
    shutil.copy(__file__, folder)
    (folder / "sitecustomize.py").write_text(SITE)
    (folder / "replay.json").write_text(json.dumps({"finished": str(finished), "ends": ends and str(ends)}))
    return {"PYTHONPATH": os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))}


def main() -> None:
    """Keep a checkpoint, wait until the run may go on, and leave what the finished run left."""
    from multicard.core.layout import PROGRESS, rank_file
    from multicard.runs.rank_report import RankReport

    asked = json.loads(Path(__file__).with_name("replay.json").read_text())
    job = json.loads(Path(os.environ["MULTICARD_OBSERVE"]).read_text())
    scratch, finished, checkpoint = Path(job["scratch"]), Path(asked["finished"]), Path(job["checkpoint"])
    if checkpoint.exists():
        print(f"{PROGRESS}  resuming after epoch 1", flush=True)
    checkpoint.write_text("")
    print(f"{PROGRESS}  checkpoint after epoch 1", flush=True)
    runs = checkpoint.parents[1]
    while asked["ends"] and len(list(runs.glob("*/run.json"))) >= int(Path(asked["ends"]).read_text()):
        time.sleep(0.05)
    found = json.loads((finished / "run.json").read_text())
    recorded = found | found["ranks"][0]
    record = {name: recorded[name] for name in RankReport.model_fields if name in recorded}
    record |= {"pid": os.getpid(), "outcome": "completed", "reason": None}
    diverges = job["parameters"].get("learning_rate") == DIVERGES
    if diverges:
        record |= {"outcome": "diverged", "reason": {"code": "diverged", "rank": 0, "loss": "nan", "step": 3}}
    with (finished / "steps.csv").open(newline="") as source, (scratch / rank_file("steps.csv", 0)).open("w") as target:
        rows = csv.DictReader(source)
        writer = csv.DictWriter(target, rows.fieldnames)
        writer.writeheader()
        writer.writerows(row for row in rows if row["rank"] == "0")
    shutil.copy(finished / "epochs.csv", scratch / rank_file("epochs.csv", 0))
    (scratch / rank_file("rank.json", 0)).write_text(json.dumps(record))
    sys.exit(1 if diverges else 0)


if __name__ == "__main__":
    main()
