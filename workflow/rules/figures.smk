# From runs to measures and tables, from these to figures. A scenario's files depend on its own runs only.


rule measure_scenario:
    input:
        # Made of each run's record, and made again with it.
        scenario_activity,
    output:
        measures=report(
            f"{RESULTS}/scenarios/{{scenario}}/measures.csv",
            caption="../report/measures.rst",
            category="{scenario}",
            labels={"what": "measures of every run"},
        ),
        runs=report(
            f"{RESULTS}/scenarios/{{scenario}}/runs.csv",
            caption="../report/runs.rst",
            category="{scenario}",
            labels={"what": "runs and their outcomes"},
        ),
        # Written last, so it stands for the tables: Snakemake takes the checksum of every input again for each output.
        tables=f"{RESULTS}/scenarios/{{scenario}}/{SCENARIO_INDEX}",
    log:
        f"{RESULTS}/logs/measure_scenario/{{scenario}}.txt",
    benchmark:
        f"{RESULTS}/benchmarks/measure_scenario/{{scenario}}.tsv"
    priority: lambda wildcards: priority_of_step(PLAN.priority_of_scenario(wildcards.scenario))
    resources:
        **small(),
    params:
        code=code(
            "measure_scenario.py",
            "runs",
            "stats",
            "config",
            "results",
            "answers",
            *MEASURING,
        ),
        out=lambda wildcards, output: str(Path(output.measures).parent),
        machines=[str(path) for path in machine_records(Path(RESULTS))],
        # Another record makes the measures again, but these ask for none.
        limits=[sha256(path) for path in machine_records(Path(RESULTS))],
        runs=lambda wildcards: in_file(
            {
                "folders": [
                    f"{RESULTS}/runs/{run}"
                    for run in PLAN.runnable(wildcards.scenario)
                ],
                "not_run": PLAN.not_runnable(wildcards.scenario),
            }
            | looks_at(wildcards.scenario)
        ),
        question=question,
    message:
        "measure the scenario {wildcards.scenario}"
    shell:
        'python "$SCRIPTS/measure_scenario.py" {params.runs:q} --out {params.out:q}'
        " --machines {params.machines:q} 2> {log:q}"


# One program draws all figures of a scenario: to load the libraries takes longer than to draw.
rule draw_figures:
    input:
        measures=f"{RESULTS}/scenarios/{{scenario}}/measures.csv",
        outcomes=f"{RESULTS}/scenarios/{{scenario}}/runs.csv",
        tables=f"{RESULTS}/scenarios/{{scenario}}/{SCENARIO_INDEX}",
    output:
        report(
            directory(f"{RESULTS}/figures/{{scenario}}"),
            patterns=["{figure}.png"],
            caption="../report/figures.rst",
            category="{scenario}",
            labels={"what": "{figure}"},
        ),
    log:
        f"{RESULTS}/logs/draw_figures/{{scenario}}.txt",
    benchmark:
        f"{RESULTS}/benchmarks/draw_figures/{{scenario}}.tsv"
    priority: lambda wildcards: priority_of_step(PLAN.priority_of_scenario(wildcards.scenario))
    resources:
        **small(),
    params:
        code=code("draw_figures.py", "figures"),
        figures=lambda wildcards: PLAN.figures()[wildcards.scenario],
        scenario=lambda wildcards, input: str(Path(input.measures).parent),
        width=EXPERIMENT.figure_width,
        question=question,
        summary=summary,
    message:
        "draw the figures of the scenario {wildcards.scenario}"
    shell:
        'python "$SCRIPTS/draw_figures.py"'
        " --scenario {params.scenario:q} --out {output:q} --width {params.width:q} {params.figures:q}"
        " 2> {log:q}"
