"""Time the workflow around the runs, on made-up ("synthetic") runs of the papers' whole matrix.

    python benchmarks/matrix.py --scratch /tmp/matrix [--config config/paper.yaml] [--cores 2] [--runs 5000]

Measured, as wall time of the command a user types: planning; taking the runs from an archive; measures, tables,
figures, claims, recommendations and report; a start without any change; the same after one run has changed; and
planning a matrix of many runs.
"""

import argparse
import shutil
import subprocess
import sys
import time
from pathlib import Path

import yaml
from synthetic_runs import write_runs

from multicard.archive.pack import pack
from multicard.experiment.load import check

ROOT = Path(__file__).parents[1]
ARCHIVE = "synthetic.tar.gz"


def main() -> None:
    """Make the runs, and time each command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scratch", type=Path, required=True, help="folder that is made, or emptied")
    parser.add_argument("--config", type=Path, default=ROOT / "config/paper.yaml", help="the experiment")
    parser.add_argument("--cores", type=int, default=2, help="cores that Snakemake may use")
    parser.add_argument("--runs", type=int, default=5000, help="runs of the matrix that is only planned")
    arguments = parser.parse_args()
    scratch = arguments.scratch.absolute()
    if scratch.exists():
        shutil.rmtree(scratch)
    scratch.mkdir(parents=True)

    described = yaml.safe_load(arguments.config.read_text())
    described["results"] = "made"
    experiment = check(described, str(arguments.config)).model_copy(update={"results": str(scratch / "made")})
    runs = write_runs(experiment, scratch / "made")
    pack(experiment, scratch / ARCHIVE)
    described |= {"results": "results", "recorded": [ARCHIVE]}
    (scratch / "experiment.yaml").write_text(yaml.safe_dump(described))
    (scratch / "many.yaml").write_text(yaml.safe_dump(_many(arguments.runs)))

    def timed(what: str, *options: str, configuration: str = "experiment.yaml") -> None:
        print(f"{what:<60} {_snakemake(scratch, configuration, arguments.cores, *options):6.1f} s", flush=True)

    print(f"{runs} synthetic runs, archive of {(scratch / ARCHIVE).stat().st_size / 1e6:.0f} MB")
    timed("planning", "--dry-run", "--quiet")
    timed("taking the runs from the archive", "--until", "unpack_recorded")
    timed("all measures, tables, figures, conclusions, report")
    timed("a start without a change")
    record = sorted((scratch / "results/runs").glob("*/run.json"))[-1]
    record.write_text(record.read_text().replace('"wall_time_s": 60.0', '"wall_time_s": 61.0'))
    timed("after one run changed")
    timed(f"planning {arguments.runs} runs", "--dry-run", "--quiet", configuration="many.yaml")


def _snakemake(folder: Path, configuration: str, cores: int, *options: str) -> float:
    """Seconds that a start of the workflow takes; it ends the benchmark where it fails."""
    command = [str(Path(sys.executable).with_name("snakemake")), "--snakefile", str(ROOT / "Snakefile")]
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
    jobs = [line for line in done.stderr.splitlines() if line.startswith("total")]
    print("".join(f"[{line.split()[-1]} jobs] " for line in jobs[:1]), end="")
    return seconds


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
