# Conclusions from all scenarios: the papers' claims checked, and recommendations.


rule conclude:
    input:
        measured=expand(
            "{results}/scenarios/{scenario}/{file}",
            results=RESULTS,
            scenario=PLAN.scenarios,
            file=["measures.csv", SCENARIO_INDEX],
        ),
    output:
        verdicts=report(
            f"{RESULTS}/claims.csv",
            caption="../report/claims.rst",
            category="conclusions",
            labels={"what": "verdicts on the papers' claims"},
        ),
        tests=f"{RESULTS}/claims_tests.csv",
        recommendations=report(
            f"{RESULTS}/recommendations.md",
            caption="../report/recommendations.rst",
            category="conclusions",
            labels={"what": "bottlenecks, and what to try"},
        ),
    log:
        f"{RESULTS}/logs/conclude.txt",
    resources:
        **small(),
    params:
        code=code("conclude.py", "answers", "papers"),
        scenarios=list(PLAN.scenarios),
        results=lambda wildcards, output: str(Path(output.verdicts).parent),
    message:
        "check the papers' claims, and recommend what to change"
    shell:
        'python "$SCRIPTS/conclude.py" --results {params.results:q} {params.scenarios:q} 2> {log:q}'
