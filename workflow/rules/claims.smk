# What all scenarios together say: verdicts on the papers' claims, and recommendations.


MEASURED = dict(
    measures=expand(
        "{results}/scenarios/{scenario}/measures.csv",
        results=RESULTS,
        scenario=SCENARIOS,
    ),
    tables=expand(
        "{results}/scenarios/{scenario}/{table}.parquet",
        results=RESULTS,
        scenario=SCENARIOS,
        table=SCENARIO_TABLES,
    ),
    code=library("analysis"),
)


rule judge_claims:
    input:
        **MEASURED,
        claims=RESOURCES / "claims.yaml",
    output:
        verdicts=report(
            f"{RESULTS}/claims.csv",
            caption="../report/claims.rst",
            category="conclusions",
            labels={"what": "verdicts on the papers' claims"},
        ),
        comparisons=f"{RESULTS}/claims_comparisons.csv",
    log:
        f"{RESULTS}/logs/judge_claims.txt",
    conda:
        "../../envs/conda.yaml"
    params:
        scenarios=list(SCENARIOS),
        results=lambda wildcards, output: str(Path(output.verdicts).parent),
    message:
        "judge the papers' claims"
    shell:
        'python "$SCRIPTS/judge_claims.py"'
        " --claims {input.claims:q} --results {params.results:q}"
        " --verdicts {output.verdicts:q} --comparisons {output.comparisons:q} {params.scenarios:q} 2> {log:q}"


rule recommend:
    input:
        **MEASURED,
    output:
        report(
            f"{RESULTS}/recommendations.md",
            caption="../report/recommendations.rst",
            category="conclusions",
            labels={"what": "what holds the jobs back, and what to try"},
        ),
    log:
        f"{RESULTS}/logs/recommend.txt",
    conda:
        "../../envs/conda.yaml"
    params:
        scenarios=list(SCENARIOS),
        results=lambda wildcards, output: str(Path(output[0]).parent),
    message:
        "recommend what to change"
    shell:
        'python "$SCRIPTS/recommend.py"'
        " --results {params.results:q} --out {output:q} {params.scenarios:q} 2> {log:q}"
