# What the rules share: the checked configuration and the runs it expands into.
import shlex
from pathlib import Path

from multicard.archive.recorded import archives_in, find_recorded, obstacles
from multicard.experiment.cluster import check_names, machine_for
from multicard.experiment.load import check
from multicard.experiment.resources import (
    AROUND_MIN,
    REQUESTED,
    cpus,
    memory_of_attempt_mb,
    request,
)
from multicard.experiment.runs import distinct
from multicard.experiment.runs import expand as expand_runs
from multicard.experiment.figures import FIGURES
from multicard.experiment.workload import WORKLOADS
from multicard.core.layout import SCENARIO_TABLES, WRITTEN_TABLES
from snakemake_interface_executor_plugins.settings import ExecMode
from snakemake.settings.types import DeploymentMethod

with reported():
    for path in workflow.configfiles:
        read_yaml(Path(path))
    EXPERIMENT = check(config, " + ".join(str(path) for path in workflow.configfiles))
    if not EXPERIMENT.cluster and "slurm_partition" in (
        workflow.resource_settings.default_resources or ()
    ):
        raise UserError(
            "jobs go to a cluster, but what its nodes offer is not stated: a --config on the command line takes the "
            "place of the profile's, so state `cluster` in the configuration file"
        )
if EXPERIMENT.cluster:  # a profile states its numbers as text
    config["cluster"] = EXPERIMENT.cluster.model_dump()
validate(config, "../schemas/config.schema.json")

RESULTS = EXPERIMENT.results
SCENARIOS = expand_runs(EXPERIMENT)
RUNS = distinct(SCENARIOS)
MACHINE = machine_for(EXPERIMENT.cluster)
with reported():
    RECORDED = find_recorded(EXPERIMENT, RUNS)
OBSTACLES = obstacles(EXPERIMENT, RUNS, MACHINE, RECORDED)
# Jobs that this machine starts itself take all of it, whatever the configuration says of a cluster.
HERE = (
    workflow.exec_mode == ExecMode.DEFAULT and workflow.resource_settings.nodes is None
)
ON_CLUSTER = EXPERIMENT.cluster is not None and not HERE
# The rules that draw have a name per scenario, so a profile cannot name them: they join the group that it states.
FIGURES_GROUP = "figures" if ON_CLUSTER else None
if ON_CLUSTER:
    with reported():
        check_names([Path(), Path(workflow.basedir), *map(Path, workflow.configfiles)])


# The rules' programs run with the Python that runs Snakemake, whether or not its environment is active; or with that
# of the conda environment, which has all the packages but multicard itself.
BASE = Path(workflow.basedir)
RESOURCES = BASE / "resources"
DEPLOYMENT = workflow.deployment_settings.deployment_method
# Modules are loaded before this; Snakemake goes on where that fails, and a run would use other software.
PREFIX = "[ $? = 0 ] || exit 1; " if DeploymentMethod.ENV_MODULES in DEPLOYMENT else ""
PREFIX += f"SCRIPTS={shlex.quote(str(BASE / 'workflow/scripts'))}; RESOURCES={shlex.quote(str(RESOURCES))}; "
if DeploymentMethod.CONDA in DEPLOYMENT:
    PREFIX += f"export PYTHONPATH={shlex.quote(str(BASE / 'src'))}; "
else:
    PREFIX += f"export PATH={shlex.quote(str(Path(sys.executable).parent))}:$PATH; "
shell.prefix(PREFIX)

with reported():
    SHIPPED = archives_in(RESOURCES / "recorded")

# Runs start in the order of the configuration, and a scenario's figures are drawn before the runs of the next one start.
PLACE = {run: len(RUNS) - place for place, run in enumerate(RUNS)}
AFTER_RUNS = {
    name: min(PLACE[run.id] for run in runs) - 0.5 for name, runs in SCENARIOS.items()
}
AFTER_RUN = {
    run.id: AFTER_RUNS[name]
    for name, runs in reversed(SCENARIOS.items())
    for run in runs
}


wildcard_constraints:
    run=r"[a-z0-9][A-Za-z0-9_.+-]*",
    dataset=r"[a-z0-9-]+",
    model=r"[a-z0-9-]+",
    scenario=r"[a-z0-9_-]+",
    figure=r"[a-z0-9_]+",
    archive=r"[A-Za-z0-9][A-Za-z0-9_.+-]*",


def runnable(scenario):
    """Ids of a scenario's runs that can run here."""
    return [run.id for run in SCENARIOS[scenario] if OBSTACLES[run.id] is None]


def not_runnable(scenario):
    """Reasons by run id for the runs of a scenario that cannot run here."""
    return {
        run.id: OBSTACLES[run.id] for run in SCENARIOS[scenario] if OBSTACLES[run.id]
    }


def all_records():
    """Records of every run that can be had here."""
    return [f"{RESULTS}/runs/{run}/run.json" for run in RUNS if OBSTACLES[run] is None]


def drawn_figures():
    """Names of the figures of every scenario that has something to show."""
    return {
        name: list(scenario.figures)
        for name, scenario in EXPERIMENT.scenarios.items()
        if scenario.figures and runnable(name)
    }


def all_figures():
    """Pictures of every scenario that has something to show."""
    return [
        f"{RESULTS}/figures/{name}/{figure}.png"
        for name, figures in drawn_figures().items()
        for figure in figures
    ]


def all_recorded():
    """Folders of what is drawn of every shipped archive."""
    return [f"{RESULTS}/recorded/{name}" for name in SHIPPED]


def shipped_archive(wildcards):
    """The shipped archive of a name; an unknown one is missing."""
    return str(
        SHIPPED.get(wildcards.archive, RESOURCES / "recorded" / wildcards.archive)
    )


def library(*rooms):
    """Files of rooms of the package, templates too: when they change, what they made is made again."""
    import multicard

    package = Path(multicard.__file__).parent
    return sorted(str(file) for room in rooms for file in (package / room).glob("*.*"))


def recorded_runs(wildcards):
    """Ids of the runs that are taken from each archive, as JSON."""
    runs = {}
    for run, archive in RECORDED.archives.items():
        runs.setdefault(str(archive), []).append(run)
    return json.dumps(runs)


def run_parameters(wildcards):
    """Parameters of a run as JSON, only those that differ from the defaults."""
    return json.dumps(RUNS[wildcards.run].parameters.stated(), sort_keys=True)


def run_threads(wildcards):
    """CPUs of a run: on this machine all, so that nothing disturbs what it measures; on a cluster what it needs."""
    return cpus(RUNS[wildcards.run].parameters) if ON_CLUSTER else workflow.cores


def run_minutes(wildcards):
    """Minutes that a run's job may take; on a cluster more than the run's own limit, which is to end it first."""
    return EXPERIMENT.time_limit_min + (AROUND_MIN if ON_CLUSTER else 0)


def run_memory(wildcards, attempt):
    """Megabytes that a run is expected to need at most, on each node; more when a job was lost, maybe for its memory."""
    return memory_of_attempt_mb(RUNS[wildcards.run], attempt, EXPERIMENT.cluster)


def requested(name):
    """Resource function: what a run asks of a cluster, and nothing on this machine."""

    def amount(wildcards):
        if ON_CLUSTER:
            return request(RUNS[wildcards.run], EXPERIMENT)[name]

    return amount


def run_inputs(wildcards):
    """Statements of origin of the prepared data set and, of a language model's tuning, the prepared model."""
    parameters = RUNS[wildcards.run].parameters
    inputs = {"data": f"data/{parameters.dataset}/provenance.json"}
    if "model" in WORKLOADS[parameters.workload].inputs:
        inputs["model"] = f"data/models/{parameters.model}/provenance.json"
    return inputs


def input_folders(wildcards, input):
    """Arguments that name the folders of what a run is made of."""
    return [
        part
        for name, file in input.items()
        for part in (f"--{name}", str(Path(file).parent))
    ]


def dataset_definition(wildcards):
    """Definition of a data set as JSON."""
    return EXPERIMENT.datasets[wildcards.dataset].model_dump_json(exclude_defaults=True)


def model_definition(wildcards):
    """Definition of a language model as JSON."""
    return EXPERIMENT.models[wildcards.model].model_dump_json(exclude_defaults=True)


def scenario_files(name):
    """Input function: a file of every run of the scenario that can run here.

    The record of a recorded run stands for all its files: they come with it, and Snakemake lists each that it misses.
    """

    def files(wildcards):
        runs = runnable(wildcards.scenario)
        if name != "run.json":
            runs = [run for run in runs if run not in RECORDED.archives]
        return [f"{RESULTS}/runs/{run}/{name}" for run in runs]

    return files


def question(wildcards):
    """What the scenario asks."""
    return EXPERIMENT.scenarios[wildcards.scenario].question


def what_ran(wildcards):
    """One sentence about the runs behind a figure."""
    runs = SCENARIOS[wildcards.scenario]
    lost = len(not_runnable(wildcards.scenario))
    repeats = EXPERIMENT.scenarios[wildcards.scenario].repeats
    ran = f"{len(runs) - lost} runs, {repeats} of each configuration"
    where = "nodes of this cluster" if EXPERIMENT.cluster else "this machine"
    return f"{ran}; {lost} more could not run on {where}" if lost else ran


def about(wildcards):
    """Name, question, reading and, where known, the paper's figure, of each figure of a scenario."""
    figures = EXPERIMENT.scenarios[wildcards.scenario].figures
    words = ("name", "question", "caption", "answers")
    return [{word: getattr(FIGURES[name], word) for word in words} for name in figures]


def plans(wildcards):
    """Question and drawn figures of every scenario, as JSON."""
    drawn = drawn_figures()
    return json.dumps(
        {
            name: {
                "question": scenario.question,
                "figures": drawn.get(name, []),
            }
            for name, scenario in EXPERIMENT.scenarios.items()
        }
    )
