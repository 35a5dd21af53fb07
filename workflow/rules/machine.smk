# The limits of a machine, measured only when asked for: `machine` for the one that Snakemake runs on, or for a node that
# the cluster chooses; by the name of a record, such as results/machine/node07-cuda.json, for that node.


rule machine:
    input:
        limits_of_machine,
    localrule: True


# It takes the whole machine, as a run does. Its script is no input: what it measured stands until its parameters change.
rule measure_machine:
    output:
        f"{RESULTS}/machine/{{host}}-{{device}}.json",
    log:
        f"{RESULTS}/logs/measure_machine/{{host}}-{{device}}.txt",
    wildcard_constraints:
        host=r"[A-Za-z0-9.-]+",
        device="cpu|cuda",
    envmodules:
        *EXPERIMENT.modules,
    threads: node_threads
    resources:
        mem_mb=node_memory,
        runtime=30,
        gpu=lambda wildcards: (
            EXPERIMENT.cluster.gpus_per_node
            if ON_CLUSTER and wildcards.device == "cuda"
            else None
        ),
        slurm_extra=lambda wildcards: (
            " --nodelist=".join(filter(None, ["--exclusive", named_node(wildcards)]))
            if ON_CLUSTER
            else None
        ),
    params:
        host=named_node,
    message:
        "measure the limits of {wildcards.host} ({wildcards.device})"
    shell:
        'python "$SCRIPTS/measure_machine.py" --device {wildcards.device:q} --host={params.host:q}'
        " --parent $PPID --out {output:q} > {log:q} 2>&1"
