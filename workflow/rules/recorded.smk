# What was recorded elsewhere, to stand beside the experiment's own results: every archive in resources/recorded.


rule draw_recorded:
    input:
        archive=shipped_archive,
        claims=RESOURCES / "claims.yaml",
        code=library("analysis", "archive", "figures", "report"),
    output:
        directory(f"{RESULTS}/recorded/{{archive}}"),
    log:
        f"{RESULTS}/logs/draw_recorded/{{archive}}.txt",
    conda:
        "../../envs/conda.yaml"
    message:
        "draw the recorded results {wildcards.archive}"
    shell:
        'python "$SCRIPTS/draw_recorded.py"'
        " {input.archive:q} --claims {input.claims:q} --out {output:q} 2> {log:q}"
