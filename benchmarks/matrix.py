"""Time the workflow around the runs, on synthetic runs of the papers' whole matrix.

    python benchmarks/matrix.py --scratch /tmp/matrix [--config config/tour.yaml] [--cores 2] [--runs 5000]

Measured, as wall time of the command a user types: planning the matrix; with the runs there, making measures, tables,
figures, claims, recommendations and report; a start without a change, and after one run has changed; and planning a
matrix of many runs.
"""

import argparse
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import yaml
from snakemake.utils import update_config
from synthetic_runs import write_runs

from multicard.config.load import check

ROOT = Path(__file__).parents[1]
PAPERS = [ROOT / "config" / f"paper-{part}.yaml" for part in ("vision", "llm")]
CLUSTER = {"cpus_per_node": 64, "gpus_per_node": 4}  # so that runs on GPUs are planned here too


def main() -> None:
    """Make the runs, and time each command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scratch", type=Path, required=True, help="folder that is made, or emptied")
    parser.add_argument("--config", type=Path, nargs="+", default=PAPERS, help="the experiment, in parts")
    parser.add_argument("--cores", type=int, default=2, help="cores that Snakemake may use")
    parser.add_argument("--runs", type=int, default=5000, help="runs of the matrix that is only planned")
    arguments = parser.parse_args()
    scratch = arguments.scratch.absolute()
    if scratch.exists():
        shutil.rmtree(scratch)
    scratch.mkdir(parents=True)

    described = joined(arguments.config) | {"results": "results", "cluster": CLUSTER}
    for model in described.get("models", {}).values():  # weights of a real model are not at hand
        model |= {"architecture": "tiny", "folder": None}
    experiment = check(described, " + ".join(map(str, arguments.config)))
    runs = write_runs(experiment, scratch / "results")
    for name, changes in (
        ("made", {}),
        ("new", {"results": "new"}),
    ):
        (scratch / f"{name}.yaml").write_text(yaml.safe_dump(described | changes))
    (scratch / "many.yaml").write_text(yaml.safe_dump(_many(arguments.runs)))

    def timed(what: str, configuration: str, *options: str) -> None:
        jobs, seconds = _snakemake(scratch, configuration, arguments.cores, *options)
        print(f"{what:<52} {jobs:>6} jobs {seconds:6.1f} s", flush=True)

    print(f"{runs} synthetic runs")
    timed("planning", "new.yaml", "--dry-run", "--quiet", "rules")
    timed("measures, tables, figures, conclusions, report", "made.yaml")
    timed("a start without a change", "made.yaml")
    record = sorted((scratch / "results/runs").glob("*/run.json"))[-1]
    record.write_text(record.read_text().replace('"wall_time_s": 60.0', '"wall_time_s": 61.0'))
    timed("after one run changed", "made.yaml")
    timed(f"planning {arguments.runs} runs", "many.yaml", "--dry-run", "--quiet", "rules")


def joined(configurations: list[Path]) -> dict[str, Any]:
    """What several configuration files state together, as Snakemake joins them."""
    together: dict[str, Any] = {}
    for configuration in configurations:
        update_config(together, yaml.safe_load(configuration.read_text()))
    return together


def _snakemake(folder: Path, configuration: str, cores: int, *options: str) -> tuple[int, float]:
    """Jobs and seconds of a start of the workflow; it ends the benchmark where it fails."""
    command = [str(Path(sys.executable).with_name("snakemake")), "--snakefile", str(ROOT / "workflow/Snakefile")]
    command += [
        "--directory",
        str(folder),
        "--configfile",
        str(folder / configuration),
        "--cores",
        str(cores),
        *options,
    ]
    start = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - start
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
    said = done.stdout + done.stderr
    totals = [int(line.split()[-1]) for line in said.splitlines() if line.startswith("total ")]
    return (totals or [0])[0], seconds


def _many(runs: int) -> dict[str, object]:
    """An experiment of at least so many runs on the digits, on one or two processes of this machine."""
    repeats = -(-runs // (10 * 10 * 2))
    vary = {"image_size": [32 + 8 * n for n in range(10)], "batch_size": [8 + n for n in range(10)], "devices": [1, 2]}
    scenario = {
        "question": "How long does planning take?",
        "fixed": {"strategy": "ddp-ds", "device": "cpu", "dataset": "digits"},
        "vary": vary,
        "repeats": repeats,
        "figures": ["iteration_time", "speedup"],
    }
    return {"results": "many", "datasets": {"digits": {"source": "digits"}}, "scenarios": {"many": scenario}}


if __name__ == "__main__":
    main()
