# The page that people open: all results in one file.


rule write_report:
    input:
        tables=expand(
            "{results}/scenarios/{scenario}/{file}",
            results=RESULTS,
            scenario=PLAN.scenarios,
            file=["measures.csv", "runs.csv", SCENARIO_INDEX],
        ),
        figures=all_figures(),
        claims=f"{RESULTS}/claims.csv",
        claims_tests=f"{RESULTS}/claims_tests.csv",
        recommendations=f"{RESULTS}/recommendations.md",
    output:
        f"{RESULTS}/report.html",
    log:
        f"{RESULTS}/logs/write_report.txt",
    resources:
        **small(),
    params:
        code=code("make_report.py", "report"),
        plans=lambda wildcards: in_file(PLAN.scenario_plans()),
        # Records of machines and searches that are there: others make the report again, but the report asks for none.
        machines=[sha256(path) for path in machine_records(Path(RESULTS))],
        searches=[sha256(path) for path in search_tables(Path(RESULTS))],
        results=lambda wildcards, output: str(Path(output[0]).parent),
        # Derived from the input, so that the same configuration under another name makes nothing again.
        configuration=lambda wildcards, input: CONFIGURATION,
    message:
        "write the report"
    shell:
        'python "$SCRIPTS/make_report.py" --results {params.results:q} --scenarios {params.plans:q}'
        " --configuration {params.configuration:q} --out {output:q} 2> {log:q}"
