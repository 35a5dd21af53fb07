# Prepare data and models, then run the jobs. What may be fetched from the network, and what is only unpacked, is made by
# the machine that Snakemake runs on, since a cluster's nodes often have no way out.


rule prepare_data:
    output:
        "data/{dataset}/provenance.json",
    log:
        "data/{dataset}/log.txt",
    localrule: True
    conda:
        "../../envs/conda.yaml"
    params:
        dataset=dataset_definition,
    message:
        "prepare the data set {wildcards.dataset}"
    shell:
        'python "$SCRIPTS/prepare_data.py"'
        ' --name {wildcards.dataset:q} --dataset {params.dataset:q} --resources "$RESOURCES"'
        " --out data/{wildcards.dataset:q} 2> {log:q}"


rule prepare_model:
    output:
        "data/models/{model}/provenance.json",
    log:
        "data/models/{model}/log.txt",
    localrule: True
    conda:
        "../../envs/conda.yaml"
    params:
        model=model_definition,
    message:
        "prepare the model {wildcards.model}"
    shell:
        'python "$SCRIPTS/prepare_model.py"'
        ' --name {wildcards.model:q} --model {params.model:q} --resources "$RESOURCES"'
        " --out data/models/{wildcards.model:q} 2> {log:q}"


# A run takes the whole machine, so that nothing disturbs what it measures. On a cluster it asks for what its parameters
# need, and for whole nodes unless the configuration lets it share them.
rule launch_run:
    input:
        unpack(run_inputs),
    output:
        record=f"{RESULTS}/runs/{{run}}/run.json",
        steps=f"{RESULTS}/runs/{{run}}/steps.csv",
        epochs=f"{RESULTS}/runs/{{run}}/epochs.csv",
        captured=f"{RESULTS}/runs/{{run}}/trace/captured.json",
    log:
        f"{RESULTS}/runs/{{run}}/log.txt",
    priority: lambda wildcards: PLACE[wildcards.run]
    conda:
        "../../envs/conda.yaml"
    envmodules:
        *EXPERIMENT.modules,
    threads: run_threads
    resources:
        **{name: requested(name) for name in REQUESTED},
        mem_mb=run_memory,
        runtime=run_minutes,
        time_limit_min=EXPERIMENT.time_limit_min,
    params:
        parameters=run_parameters,
        inputs=input_folders,
        folder=lambda wildcards, output: str(Path(output.record).parent),
    message:
        "run {wildcards.run}"
    shell:
        'python "$SCRIPTS/launch_run.py"'
        " --parameters {params.parameters:q} {params.inputs:q} --out {params.folder:q}"
        " --time-limit-min {resources.time_limit_min}"


# Runs that an archive holds are taken from there. All at once: an archive can only be read from its beginning.
if RECORDED.archives:

    ruleorder: unpack_recorded > launch_run

    rule unpack_recorded:
        input:
            sorted(map(str, set(RECORDED.archives.values()))),
        output:
            [f"{RESULTS}/runs/{run}/run.json" for run in RECORDED.archives],
        log:
            f"{RESULTS}/logs/unpack_recorded.txt",
        priority: len(RUNS) + 1
        localrule: True
        conda:
            "../../envs/conda.yaml"
        params:
            runs=recorded_runs,
        message:
            "unpack the recorded runs"
        shell:
            'python "$SCRIPTS/unpack_recorded.py" --runs {params.runs:q} --out {RESULTS:q}/runs 2> {log:q}'
