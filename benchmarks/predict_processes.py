"""Predict four CPU processes from one and two, and measure them.

    python benchmarks/predict_processes.py --results FOLDER

Runs the embedded vision job on one, two and four processes, three repeats in turn, with a batch for each and with one
that they share. `multicard run` refuses more processes than there are CPUs, since these compete for them: here they
may, which no law of a prediction knows. What is in FOLDER is not run again.
"""

import argparse
from pathlib import Path

import yaml

from multicard import read_results
from multicard.experiment.load import read_experiment
from multicard.experiment.read_run import read_run
from multicard.experiment.runs import distinct, expand
from multicard.launch.job import run_job
from multicard.trace.export import export_run
from multicard.trace.extract import extract_run
from multicard.workloads.vision.prepare import prepare

CONFIG = """
results: {results}
datasets:
  digits: {{source: digits}}
fixed:
  {{device: cpu, dataset: digits, image_size: 48, width_mult: 0.35, epochs: 1, steps_per_epoch: 40, profiler: none,
  profiled_steps: 1, strategy: ddp-ds}}
scenarios:
  weak:
    question: What do processes with a batch each take?
    fixed: {{batch_size: 16}}
    vary: {{devices: [1, 2, 4]}}
    repeats: 3
    figures: [iteration_time]
  strong:
    question: And processes that share a batch?
    fixed: {{batch_size: 32, scaling: strong}}
    vary: {{devices: [1, 2, 4]}}
    repeats: 3
    figures: [iteration_time]
"""


def main() -> None:
    """Run what is missing and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", type=Path, required=True)
    results = parser.parse_args().results
    config, data = results / "config.yaml", results / "digits"
    results.mkdir(parents=True, exist_ok=True)
    config.write_text(CONFIG.format(results=results))
    experiment = read_experiment(config)
    if not data.exists():
        prepare("digits", experiment.datasets["digits"], data)
    runs = distinct(expand(experiment))
    for name, run in sorted(runs.items(), key=lambda each: each[1].parameters.repeat):
        folder = results / "runs" / name
        if not (folder / "run.json").exists():
            print(name, run_job(run.parameters, data, folder, time_limit_s=600).outcome, flush=True)
            export_run(folder)
            extract_run(folder, read_run(folder).ranks)
    found = read_results(results, config).predictions([8])
    columns = ["configuration", "devices", "predicted_s", "predicted_s_low", "predicted_s_high", "measured_s"]
    print(found.checks[[*columns, "prediction_error", "inside"]].to_string())
    print(found.predictions[["configuration", "reason"]].to_string(), *found.verdicts, sep="\n")
    print(yaml.safe_dump(found.predictions["caveats"].tolist()))


if __name__ == "__main__":
    main()
