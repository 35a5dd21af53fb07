# Conclusions from all scenarios: the papers' claims checked, and recommendations.


MEASURED = expand(
    "{results}/scenarios/{scenario}/{file}",
    results=RESULTS,
    scenario=MATRIX.scenarios,
    file=["measures.csv", SCENARIO_INDEX],
)


rule judge_claims:
    input:
        **program("judge_claims.py", "analysis"),
        measured=MEASURED,
        claims=near(RESOURCES / "claims.yaml"),
    output:
        verdicts=report(
            f"{RESULTS}/claims.csv",
            caption="../report/claims.rst",
            category="conclusions",
            labels={"what": "verdicts on the papers' claims"},
        ),
        tests=f"{RESULTS}/claims_tests.csv",
        comparisons=f"{RESULTS}/claims_comparisons.csv",
    log:
        f"{RESULTS}/logs/judge_claims.txt",
    resources:
        **small("judge_claims"),
    params:
        scenarios=list(MATRIX.scenarios),
        results=lambda wildcards, output: str(Path(output.verdicts).parent),
    message:
        "check the papers' claims"
    shell:
        "python {input.script:q} --claims {input.claims:q} --results {params.results:q}"
        " --verdicts {output.verdicts:q} --tests {output.tests:q} --comparisons {output.comparisons:q}"
        " {params.scenarios:q} 2> {log:q}"


rule recommend:
    input:
        **program("recommend.py", "analysis"),
        measured=MEASURED,
    output:
        report(
            f"{RESULTS}/recommendations.md",
            caption="../report/recommendations.rst",
            category="conclusions",
            labels={"what": "bottlenecks, and what to try"},
        ),
    log:
        f"{RESULTS}/logs/recommend.txt",
    resources:
        **small("recommend"),
    params:
        scenarios=list(MATRIX.scenarios),
        results=lambda wildcards, output: str(Path(output[0]).parent),
    message:
        "recommend what to change"
    shell:
        "python {input.script:q} --results {params.results:q} --out {output:q} {params.scenarios:q} 2> {log:q}"
