# From captured traces to activity tables. Reports of Nsight Systems are exported on the way, once.


rule extract_activity:
    input:
        f"{RESULTS}/runs/{{run}}/run.json",
    output:
        # Written last, so it stands for the tables: to list all sixteen doubles the time that planning takes.
        f"{RESULTS}/runs/{{run}}/activity/tables.json",
    log:
        f"{RESULTS}/logs/extract_activity/{{run}}.txt",
    benchmark:
        f"{RESULTS}/benchmarks/extract_activity/{{run}}.tsv"
    priority: inspected(lambda wildcards: priority_of_step(PLAN.priority_of_trace(wildcards.run)))
    envmodules:
        *EXPERIMENT.modules,
    resources:
        **small(),
    params:
        code=code("extract_activity.py", "trace"),
    message:
        "read the trace of {wildcards.run}"
    shell:
        'python "$SCRIPTS/extract_activity.py" "$(dirname {input:q})" 2> {log:q}'
