# From runs to measures and tables, from these to figures. A scenario's files depend on its own runs only.


rule measure_scenario:
    input:
        records=scenario_files("run.json"),
        steps=scenario_files("steps.csv"),
        epochs=scenario_files("epochs.csv"),
        activity=scenario_files("activity/tables.json"),
        code=library("analysis"),
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
        tables=expand(
            f"{RESULTS}/scenarios/{{{{scenario}}}}/{{table}}.parquet",
            table=SCENARIO_TABLES,
        ),
        written=expand(
            f"{RESULTS}/scenarios/{{{{scenario}}}}/{{table}}.{{suffix}}",
            table=WRITTEN_TABLES,
            suffix=["csv", "md", "tex"],
        ),
    log:
        f"{RESULTS}/logs/measure_scenario/{{scenario}}.txt",
    priority: lambda wildcards: AFTER_RUNS[wildcards.scenario]
    conda:
        "../../envs/conda.yaml"
    params:
        out=lambda wildcards, output: str(Path(output.measures).parent),
        folders=lambda wildcards, input: [
            str(Path(record).parent) for record in input.records
        ],
        not_run=lambda wildcards: json.dumps(not_runnable(wildcards.scenario)),
        question=question,
    message:
        "measure the scenario {wildcards.scenario}"
    shell:
        'python "$SCRIPTS/measure_scenario.py"'
        " --not-run {params.not_run:q} --out {params.out:q}"
        " {params.folders:q} 2> {log:q}"


# One program draws all figures of a scenario: to load the libraries takes longer than to draw.
for scenario, figures in drawn_figures().items():

    rule:
        name:
            f"draw_figures_{scenario}"
        input:
            measures=f"{RESULTS}/scenarios/{{scenario}}/measures.csv",
            outcomes=f"{RESULTS}/scenarios/{{scenario}}/runs.csv",
            tables=expand(
                f"{RESULTS}/scenarios/{{{{scenario}}}}/{{table}}.parquet",
                table=SCENARIO_TABLES,
            ),
            code=library("figures"),
        output:
            pictures=report(
                expand(
                    f"{RESULTS}/figures/{{{{scenario}}}}/{{figure}}.png",
                    figure=figures,
                ),
                caption="../report/figures.rst",
                category="{scenario}",
                labels={"what": "figures"},
            ),
            others=expand(
                f"{RESULTS}/figures/{{{{scenario}}}}/{{figure}}.{{suffix}}",
                figure=figures,
                suffix=["svg", "pdf", "csv"],
            ),
        log:
            f"{RESULTS}/logs/draw_figures/{{scenario}}.txt",
        wildcard_constraints:
            scenario=scenario,
        priority: lambda wildcards: AFTER_RUNS[wildcards.scenario]
        group:
            FIGURES_GROUP
        conda:
            "../../envs/conda.yaml"
        params:
            figures=figures,
            scenario=lambda wildcards, input: str(Path(input.measures).parent),
            out=lambda wildcards, output: str(Path(output.pictures[0]).parent),
            question=question,
            ran=what_ran,
            about=about,
        message:
            "draw the figures of the scenario {wildcards.scenario}"
        shell:
            'python "$SCRIPTS/draw_figures.py"'
            " --scenario {params.scenario:q} --out {params.out:q} {params.figures:q} 2> {log:q}"
