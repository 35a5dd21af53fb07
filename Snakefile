# multicard: run the matrix of jobs, profile each one, draw the answer.
#
#     snakemake --profile profiles/local                                    the embedded experiment
#     snakemake --profile profiles/local --configfile config/mine.yaml      another one
import gc
import shutil
from datetime import datetime

from snakemake.utils import min_version, validate

min_version("9.11")
# What Snakemake makes of a large matrix stays until the end: looking for garbage in it takes 5% of the planning.
gc.set_threshold(50_000, 50, 50)

from multicard.core.errors import reported
from multicard.experiment.load import read_yaml
from multicard.workflow.kept_outcomes import drop_kept
from multicard.workflow.signals import end_as_by_ctrl_c
from multicard.workflow.slurm_queue import QueueWatch, refuse_orphans

if "scenarios" not in config:
    with reported():
        read_yaml(Path("config/config.yaml"))

    configfile: "config/config.yaml"


include: "workflow/rules/common.smk"
include: "workflow/rules/run.smk"
include: "workflow/rules/trace.smk"
include: "workflow/rules/figures.smk"
include: "workflow/rules/claims.smk"
include: "workflow/rules/machine.smk"
include: "workflow/rules/report.smk"


report: "workflow/report/workflow.rst"


# For the console (`logger: multicard` in the profiles).
logger.info(f"Runs planned: {len(MATRIX.runs)}", extra={"matrix": MATRIX})


onstart:
    drop_kept(Path(RESULTS) / "runs", forced_runs())
    on_slurm = ON_CLUSTER and shutil.which("squeue") is not None
    if on_slurm:
        with reported():
            refuse_orphans(Path.cwd())
    ending = end_as_by_ctrl_c(on_slurm)
    logger.info("Started", extra={"ending": ending})
    if on_slurm:
        QueueWatch(Path.cwd(), datetime.now(), logger.warning).start(ending)


localrules:
    all,


rule all:
    default_target: True
    input:
        # Asked for by themselves, so that a run whose folder was deleted runs again.
        records=all_records(),
        activity=all_activity(),
        tables=expand(
            "{results}/scenarios/{scenario}/measures.csv",
            results=RESULTS,
            scenario=MATRIX.scenarios,
        ),
        figures=all_figures(),
        conclusions=[f"{RESULTS}/claims.csv", f"{RESULTS}/recommendations.md"],
        report=f"{RESULTS}/report.html",
