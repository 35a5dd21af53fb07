# What was recorded elsewhere, to stand beside the experiment's own results: every archive in resources/recorded.


rule draw_recorded:
    input:
        **program(
            "draw_recorded.py",
            "experiment",
            "analysis",
            "archive",
            "figures",
            "report",
            *MEASURING,
        ),
        archive=lambda wildcards: near(SHIPPED[wildcards.archive]),
        claims=near(RESOURCES / "claims.yaml"),
    output:
        directory(f"{RESULTS}/recorded/{{archive}}"),
    log:
        f"{RESULTS}/logs/draw_recorded/{{archive}}.txt",
    resources:
        **small("draw_recorded"),
    message:
        "draw the recorded results {wildcards.archive}"
    shell:
        "python {input.script:q} {input.archive:q} --claims {input.claims:q} --out {output:q} 2> {log:q}"
