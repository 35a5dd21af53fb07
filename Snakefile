# multicard: run the matrix of jobs, profile each one, draw the answer.
#
#     snakemake --profile profiles/local                                    the embedded experiment
#     snakemake --profile profiles/local --configfile config/mine.yaml      another one
import json
import sys

from snakemake.utils import min_version, validate

min_version("9.11")

from multicard.core.errors import UserError, reported
from multicard.experiment.load import read_yaml
from multicard.launch.signals import end_as_by_ctrl_c
from multicard.core.lock import lock
from multicard.launch.slurm_compat import count_lost_jobs_as_failed

if "scenarios" not in config:
    with reported():
        read_yaml(Path("config/config.yaml"))

    configfile: "config/config.yaml"


include: "workflow/rules/common.smk"
include: "workflow/rules/run.smk"
include: "workflow/rules/trace.smk"
include: "workflow/rules/figures.smk"
include: "workflow/rules/claims.smk"
include: "workflow/rules/recorded.smk"
include: "workflow/rules/report.smk"


report: "workflow/report/workflow.rst"


# Snakemake's own lock survives a killed pipeline and blocks the next; this one dies with its holder.
onstart:
    with reported():
        lock(Path(".snakemake"), "another pipeline is at work in this folder")
        if hasattr(workflow.executor_settings, "no_requeue"):  # jobs go to Slurm
            count_lost_jobs_as_failed(
                sys.modules["snakemake_executor_plugin_slurm"],
                requeued=not workflow.executor_settings.no_requeue,
            )
    end_as_by_ctrl_c()


localrules:
    all,


rule all:
    default_target: True
    input:
        # Asked for by themselves, so that a run whose folder was deleted runs again.
        records=all_records(),
        tables=expand(
            "{results}/scenarios/{scenario}/measures.csv",
            results=RESULTS,
            scenario=SCENARIOS,
        ),
        figures=all_figures(),
        conclusions=[f"{RESULTS}/claims.csv", f"{RESULTS}/recommendations.md"],
        recorded=all_recorded(),
        report=f"{RESULTS}/report.html",
