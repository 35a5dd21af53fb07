# From captured traces to activity tables.


rule export_trace:
    input:
        **program("export_trace.py"),
        captured=f"{RESULTS}/runs/{{run}}/trace/captured.json",
    output:
        exported=f"{RESULTS}/runs/{{run}}/trace/exported.json",
    log:
        f"{RESULTS}/logs/export_trace/{{run}}.txt",
    benchmark:
        f"{RESULTS}/benchmarks/export_trace/{{run}}.tsv"
    priority: lambda wildcards: priority_of_step(MATRIX.priority_of_trace(wildcards.run))
    envmodules:
        *EXPERIMENT.modules,
    resources:
        **small("export_trace"),
    params:
        folder=lambda wildcards, input: str(Path(input.captured).parents[1]),
    message:
        "export the trace of {wildcards.run}"
    shell:
        "python {input.script:q} {params.folder:q} 2> {log:q}"


rule extract_activity:
    input:
        **program("extract_activity.py", "trace"),
        exported=f"{RESULTS}/runs/{{run}}/trace/exported.json",
        record=f"{RESULTS}/runs/{{run}}/run.json",
    output:
        # Written last, so it stands for the tables: to list all sixteen doubles the time that planning takes.
        f"{RESULTS}/runs/{{run}}/activity/tables.json",
    log:
        f"{RESULTS}/logs/extract_activity/{{run}}.txt",
    benchmark:
        f"{RESULTS}/benchmarks/extract_activity/{{run}}.tsv"
    priority: lambda wildcards: priority_of_step(MATRIX.priority_of_trace(wildcards.run))
    resources:
        **small("extract_activity"),
    params:
        folder=lambda wildcards, input: str(Path(input.record).parent),
    message:
        "extract the activity tables of {wildcards.run}"
    shell:
        "python {input.script:q} {params.folder:q} 2> {log:q}"
