# The page that people open: all results in one file.


rule write_report:
    input:
        tables=expand(
            "{results}/scenarios/{scenario}/{table}.csv",
            results=RESULTS,
            scenario=SCENARIOS,
            table=["measures", "runs"],
        ),
        info=expand(
            "{results}/scenarios/{scenario}/runs_info.parquet",
            results=RESULTS,
            scenario=SCENARIOS,
        ),
        figures=all_figures(),
        claims=f"{RESULTS}/claims.csv",
        recommendations=f"{RESULTS}/recommendations.md",
        records=all_records(),
        recorded=all_recorded(),
        code=library("report"),
    output:
        f"{RESULTS}/report.html",
    log:
        f"{RESULTS}/logs/write_report.txt",
    conda:
        "../../envs/conda.yaml"
    params:
        plans=plans,
        recorded=list(SHIPPED),
        results=lambda wildcards, output: str(Path(output[0]).parent),
    message:
        "write the report"
    shell:
        'python "$SCRIPTS/make_report.py"'
        " --results {params.results:q} --scenarios {params.plans:q} --recorded {params.recorded:q}"
        " --out {output:q} 2> {log:q}"
