# What the rules share: the checked configuration and the runs it expands into.
import hashlib
import inspect
import json
import re
import shlex
import sys
from functools import cache
from pathlib import Path

import multicard
from multicard.config.added_repeats import with_added_repeats
from multicard.config.experiment import default_results
from multicard.config.load import check, read_yaml
from multicard.config.plan import Plan
from multicard.config.resources import (
    AROUND_MIN,
    ATTEMPTS,
    REQUESTED,
    memory_of_attempt_mb,
    request,
    step_memory_mb,
    step_minutes,
)
from multicard.core.errors import UserError, reported
from multicard.core.files import atomic_write, sha256
from multicard.core.layout import (
    ANY_NODE,
    LAUNCHES,
    RUN,
    RUN_NAME,
    SCENARIO_INDEX,
    machine_file,
    machine_records,
    search_tables,
)
from multicard.core.pipeline import pipeline_folder
from multicard.core.prepared import folder_name
from multicard.programs.machine import slurm_job
from multicard.workflow.report_source import stated_path
from multicard.workflow.starts import started_jobs
from snakemake_interface_executor_plugins.settings import ExecMode
from snakemake.settings.types import DeploymentMethod

with reported():
    for path in workflow.configfiles:
        read_yaml(Path(path))
    # Of several files the first one names the results; the others change it.
    for path in workflow.configfiles[:1]:
        config.setdefault("results", default_results(Path(path)))
    EXPERIMENT = with_added_repeats(
        check(config, " + ".join(str(path) for path in workflow.configfiles))
    )
    if not EXPERIMENT.cluster and "slurm_partition" in (
        workflow.resource_settings.default_resources or ()
    ):
        raise UserError(
            "jobs go to a cluster, but what its nodes offer is not stated: a --config on the command line takes the "
            "place of the profile's, so state `cluster` in the configuration file"
        )
    PLAN = Plan.make(EXPERIMENT)
if EXPERIMENT.cluster:  # a profile states its numbers as text
    config["cluster"] = EXPERIMENT.cluster.model_dump()
validate(config, "../schemas/config.schema.json", set_default=False)

RESULTS = EXPERIMENT.results
# Of several configuration files the first one, which names the results; none if this is a module of another workflow.
CONFIGURATION = (
    stated_path(Path(workflow.configfiles[0]), Path.cwd())
    if workflow.configfiles
    else ""
)
# Jobs that this machine starts itself take all of it, whatever the configuration says of a cluster.
HERE = (
    workflow.exec_mode == ExecMode.DEFAULT and workflow.resource_settings.nodes is None
)
ON_CLUSTER = EXPERIMENT.cluster is not None and not HERE
# Data sets and models by the folder that each is prepared in.
DATASETS = {folder_name(*named): named for named in EXPERIMENT.datasets.items()}
MODELS = {folder_name(*named): named for named in EXPERIMENT.models.items()}


BASE = Path(str(workflow.current_basedir)).parents[1]
if not BASE.is_dir():  # Snakemake reads the rules from a repository
    BASE = pipeline_folder()
SCRIPTS = BASE / "workflow" / "scripts"
# Programs run with the Python that runs Snakemake, whether or not its environment is active. Where modules cannot be
# loaded Snakemake goes on, and a run would use other software.
MODULES = DeploymentMethod.ENV_MODULES in workflow.deployment_settings.deployment_method
shell.prefix(
    ("[ $? = 0 ] || exit 1; " if MODULES else "")
    + f"set -euo pipefail; SCRIPTS={shlex.quote(str(SCRIPTS))}; "
    f"export PATH={shlex.quote(str(Path(sys.executable).parent))}:$PATH; "
)


def inspected(function):
    """The function with its signature worked out once, which Snakemake else does three times for every job."""
    function.__signature__ = inspect.signature(function)
    return function


def any_of(names):
    """Pattern of a wildcard that is one of the names."""
    return "|".join(map(re.escape, names)) or "(?!)"


wildcard_constraints:
    run=RUN_NAME.pattern,
    dataset=any_of(DATASETS),
    model=any_of(MODELS),
    scenario=any_of(PLAN.scenarios),


def code(script, *packages):
    """Parameter of a rule: a digest of its script, and of packages or modules (patterns) of the library that it uses.

    When one changes, what was made is made again. docs/extending.md says which rules leave out what, and why. As inputs
    these files would be looked at once for every job.
    """
    library = Path(multicard.__file__).parent
    found = []
    for package in packages:
        named = list(library.glob(package))
        if not named:
            raise ValueError(
                f"code: {package}: multicard has no such package or module"
            )
        found += named
    files = [
        file
        for path in found
        for file in (path.rglob("*") if path.is_dir() else [path])
        if file.is_file() and "__pycache__" not in file.parts
    ]
    digest = hashlib.sha256()
    for file in (SCRIPTS / script, *sorted(files)):
        digest.update(file.name.encode() + file.read_bytes())
    return digest.hexdigest()[:16]


def in_file(content):
    """Path of a file with this as JSON, for what is too long for a command line: Linux allows 128 KiB.

    It is named by its content, so another content is another parameter. It lies with Snakemake's own files, since a
    dry run needs it too.
    """
    text = json.dumps(content)
    path = Path(
        ".snakemake",
        "multicard",
        f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.json",
    )
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as temporary:
            temporary.write_text(text, encoding="utf-8")
    return str(path)


# What programs say of parameters, measures, units and baselines. How they train is left out, except for the few modules
# that programs share.
MEASURING = (
    "programs/*.py",
    "programs/*/measures.py",
    "programs/*/memory_estimate.py",
    "programs/*/parameters.py",
    "programs/*/program.py",
    "programs/*/strategies",
    "programs/*/techniques",
)


def small():
    """Resources of a step after the runs: more for a large trace, and for a second attempt.

    None on this machine, unless the command line limits memory.
    """
    limited = any(
        name.startswith("mem") for name in workflow.resource_settings.resources
    )
    if HERE and not limited:
        return {}

    def folder(wildcards):
        run = getattr(wildcards, "run", None)
        return Path(RESULTS, "runs", run, "trace") if run else None

    return dict(
        mem_mb=lambda wildcards, attempt: step_memory_mb(
            attempt, EXPERIMENT.cluster, folder(wildcards)
        ),
        runtime=lambda wildcards, attempt: step_minutes(attempt, folder(wildcards)),
    )


def all_records():
    """Records of every run that can be had here."""
    return [f"{RESULTS}/runs/{run}/run.json" for run in PLAN.runnable()]


def all_activity():
    """Indices of the activity tables of runs whose traces are there: one that was deleted is made again."""
    folders = [Path(RESULTS, "runs", run) for run in PLAN.planned()]
    there = [each for each in folders if (each / "trace" / "captured.json").exists()]
    return [f"{each}/activity/tables.json" for each in there]


def all_figures():
    """Folders of the figures of every scenario that has something to show."""
    return [f"{RESULTS}/figures/{scenario}" for scenario in PLAN.figures()]


def has_outcome(run):
    """Whether a run has a record."""
    return Path(RESULTS, "runs", run, RUN).exists()


@cache
def to_be_prepared():
    """Prepared data and models that are not there and that runs without a record need."""
    needed = {
        file
        for run in PLAN.planned()
        if not has_outcome(run)
        for file in PLAN.prepared(run).values()
    }
    return {file for file in needed if not Path(file).exists()}


@inspected
def run_inputs(wildcards):
    """Input function: what a run is made of. A finished run is not repeated when its data are prepared again.

    The name of a folder of prepared data holds a digest of their definition, so its age means nothing. Snakemake runs
    the jobs that depend on an `ancient` file if that file is yet to be made; a finished run does not depend on it.
    """
    files = PLAN.prepared(wildcards.run)
    if has_outcome(wildcards.run):
        files = {
            key: file for key, file in files.items() if file not in to_be_prepared()
        }
    return {key: ancient(file) for key, file in files.items()}


@inspected
def run_arguments(wildcards, input):
    """Arguments of a run's launcher that rerun nothing: the folders of what it is made of, and its place in the order."""
    folders = [
        part
        for name, file in input.items()
        for part in (f"--{name}", str(Path(file).parent))
    ]
    return [*folders, "--order", json.dumps(vars(PLAN.order[wildcards.run]))]


@inspected
def attempt_arguments(wildcards, input, resources):
    """These for a job that another machine starts: its memory too, with which a lost run is judged.

    To ask for it, Snakemake evaluates the resources of every run, even if none is to run.
    """
    return [*run_arguments(wildcards, input), f"--memory-mb={resources.mem_mb}"]


@inspected
def run_parameters(wildcards):
    """Parameters of a run as JSON, only those that differ from the defaults."""
    return json.dumps(PLAN.runs[wildcards.run].parameters.stated(), sort_keys=True)


def forced_runs():
    """Runs that the command line asks to repeat (`--forcerun`, `--forceall`)."""
    asked = workflow.dag_settings
    if asked.forceall or "launch_run" in asked.forcerun:
        return list(PLAN.runs)
    folders = [Path(str(file)).parent for file in asked.forcerun]
    return [folder.name for folder in folders if folder.parent == Path(RESULTS, "runs")]


def priority_of_step(planned):
    """Priority of a step after the runs: before runs that have their nodes to themselves, which it cannot disturb."""
    alone = ON_CLUSTER and EXPERIMENT.timing == "exclusive"
    return PLAN.first_priority if alone else planned


def run_threads(wildcards):
    """CPUs that a run needs."""
    return PLAN.runs[wildcards.run].parameters.cpus_per_node


def node_threads(wildcards):
    """All CPUs of a node."""
    return EXPERIMENT.cluster.cpus_per_node if ON_CLUSTER else workflow.cores


def node_memory(wildcards):
    """Megabytes that measuring a node needs at most, or all of the node if it has less."""
    stated_gb = EXPERIMENT.cluster.memory_per_node_gb if ON_CLUSTER else None
    return min(16000, int(1000 * (stated_gb or 16)))


def runnable_runs():
    """Runs that are to be launched."""
    return [PLAN.runs[run] for run in PLAN.planned()]


def limits_of_machine(wildcards):
    """Records of the limits of the kinds of devices that runs use, of this machine or of one node of the cluster."""
    devices = sorted({run.parameters.device for run in runnable_runs()})
    host = ANY_NODE if ON_CLUSTER else None
    return [str(machine_file(Path(RESULTS), device, host)) for device in devices]


def named_node(wildcards):
    """The machine that a record of limits is to be of; empty where the cluster chooses one."""
    return "" if ON_CLUSTER and wildcards.host == ANY_NODE else wildcards.host


def attempt_at(run, attempt):
    """Number of the next attempt at a run, within a job its own: only jobs that have started it count.

    `attempt`: as Snakemake counts, also what Slurm refused. The first time there is no need to look at the file.
    """
    folder = Path(RESULTS, "runs", run)
    return 1 + (len(started_jobs(folder, slurm_job())) if attempt > 1 else 0)


def run_memory(wildcards, attempt):
    """Megabytes that a run is expected to need at most, on each node; more after a lost attempt, maybe for its memory."""
    run = wildcards.run
    return memory_of_attempt_mb(PLAN.runs[run], attempt_at(run, attempt), EXPERIMENT)


def requested(name):
    """Resource function: what a run asks of a cluster, and nothing to leave an outcome only."""

    def amount(wildcards, attempt):
        if attempt_at(wildcards.run, attempt) <= ATTEMPTS:
            stated = workflow.resource_settings.overwrite_resources
            whole_memory = "mem_mb" not in stated.get("launch_run", {})
            return request(PLAN.runs[wildcards.run], EXPERIMENT, whole_memory)[name]

    return amount


def run_resources():
    """Resources that depend on the run: none on this machine, of which a run gets all. Each costs 0.1 ms for every run."""
    if HERE:
        return {}
    on_cluster = {name: requested(name) for name in REQUESTED} if ON_CLUSTER else {}
    return {"mem_mb": run_memory} | on_cluster


def scenario_activity(wildcards):
    """Input function: the activity index of every run of the scenario that can be had here."""
    runs = PLAN.runnable(wildcards.scenario)
    return [f"{RESULTS}/runs/{run}/activity/tables.json" for run in runs]


def looks_at(scenario):
    """How often a scenario is looked at, where repeats are added until they are decided; nothing for a fixed number."""
    looks = EXPERIMENT.scenarios[scenario].repeats.looks
    return {"looks": looks} if looks > 1 else {}


# Only for captions. Snakemake makes nothing again for a parameter that is derived from the output.
def question(wildcards, output):
    """What the scenario asks."""
    return EXPERIMENT.scenarios[wildcards.scenario].question


def summary(wildcards, output):
    """One sentence about the runs behind a figure."""
    return PLAN.summary(wildcards.scenario)
