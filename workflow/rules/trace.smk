# From captured traces to activity tables.


rule export_trace:
    input:
        captured=f"{RESULTS}/runs/{{run}}/trace/captured.json",
    output:
        exported=f"{RESULTS}/runs/{{run}}/trace/exported.json",
    log:
        f"{RESULTS}/logs/export_trace/{{run}}.txt",
    priority: lambda wildcards: AFTER_RUN[wildcards.run]
    conda:
        "../../envs/conda.yaml"
    envmodules:
        *EXPERIMENT.modules,
    params:
        folder=lambda wildcards, input: str(Path(input.captured).parents[1]),
    message:
        "export the trace of {wildcards.run}"
    shell:
        'python "$SCRIPTS/export_trace.py" {params.folder:q} 2> {log:q}'


rule extract_activity:
    input:
        exported=f"{RESULTS}/runs/{{run}}/trace/exported.json",
        record=f"{RESULTS}/runs/{{run}}/run.json",
        code=library("trace"),
    output:
        # Written last, so it stands for the tables: to list all sixteen doubles the time that planning takes.
        f"{RESULTS}/runs/{{run}}/activity/tables.json",
    log:
        f"{RESULTS}/logs/extract_activity/{{run}}.txt",
    priority: lambda wildcards: AFTER_RUN[wildcards.run]
    conda:
        "../../envs/conda.yaml"
    params:
        folder=lambda wildcards, input: str(Path(input.record).parent),
    message:
        "extract the activity tables of {wildcards.run}"
    shell:
        'python "$SCRIPTS/extract_activity.py" {params.folder:q} 2> {log:q}'
