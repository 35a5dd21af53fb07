# Prepare data and models, then run the jobs. What may be fetched from the network, and what is only unpacked, is made by
# the machine that Snakemake runs on, since a cluster's nodes often have no way out.


rule prepare:
    input:
        PLAN.all_prepared(),
    localrule: True


# The scripts of these three rules are no inputs: what they make costs downloads and GPU hours, and stands until the
# definition, the parameters or the prepared data change.
rule prepare_data:
    output:
        "data/{dataset}/provenance.json",
    log:
        "data/{dataset}/log.txt",
    priority: PLAN.first_priority
    localrule: True
    params:
        # The folder's name says when it is to be made again.
        name=lambda wildcards: DATASETS[wildcards.dataset][0],
        definition=lambda wildcards, output: DATASETS[wildcards.dataset][
            1
        ].model_dump_json(exclude_defaults=True),
    message:
        "prepare the data set {params.name}"
    shell:
        'python "$SCRIPTS/prepare_data.py"'
        " --name {params.name:q} --dataset {params.definition:q}"
        " --out data/{wildcards.dataset:q} 2> {log:q}"


rule prepare_model:
    output:
        "data/models/{model}/provenance.json",
    log:
        "data/models/{model}/log.txt",
    priority: PLAN.first_priority
    localrule: True
    params:
        name=lambda wildcards: MODELS[wildcards.model][0],
        definition=lambda wildcards, output: MODELS[wildcards.model][
            1
        ].model_dump_json(exclude_defaults=True),
    message:
        "prepare the model {params.name}"
    shell:
        'python "$SCRIPTS/prepare_model.py"'
        " --name {params.name:q} --model {params.definition:q}"
        " --out data/models/{wildcards.model:q} 2> {log:q}"


# A run takes the whole machine, so that nothing disturbs what it measures. On a cluster it asks for what its parameters
# need, and for whole nodes unless the configuration lets it share them. It has no `benchmark`: Snakemake would read the
# memory maps of its processes while they are measured, and run.json has their times and memory.
rule launch_run:
    input:
        unpack(run_inputs),
    output:
        # Written last, so it stands for all that a run leaves: each further output costs every start half a millisecond.
        record=f"{RESULTS}/runs/{{run}}/run.json",
    log:
        launcher=f"{RESULTS}/{LAUNCHES}/{{run}}.txt",
    wildcard_constraints:
        # Runs that were measured elsewhere cannot be repeated here.
        run=f"(?!({any_of(PLAN.measured)})/){RUN_NAME.pattern}",
    priority: inspected(lambda wildcards: PLAN.priority_of_run(wildcards.run))
    envmodules:
        *EXPERIMENT.modules,
    # On this machine all, so that nothing disturbs what it measures; on a cluster what it needs.
    threads: run_threads if ON_CLUSTER else workflow.resource_settings.cores or node_threads
    resources:
        **run_resources(),
        # On a cluster more than the run's own limit, which is to end it first.
        runtime=EXPERIMENT.time_limit_min + (AROUND_MIN if ON_CLUSTER else 0),
        time_limit_min=EXPERIMENT.time_limit_min,
    params:
        parameters=run_parameters,
        # These stand here and not in the command, and are derived from the input: changed ones rerun nothing.
        inputs=run_arguments if HERE else attempt_arguments,
        folder=inspected(lambda wildcards, output: str(Path(output.record).parent)),
    message:
        "run {wildcards.run}"
    shell:
        'python "$SCRIPTS/launch_run.py"'
        " --parameters {params.parameters:q} {params.inputs:q} --out {params.folder:q}"
        # The parent of this shell is Snakemake, which may be killed.
        " --parent $PPID"
        " --time-limit-min {resources.time_limit_min}"
        " 2> {log.launcher:q}"
