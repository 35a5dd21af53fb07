# multicard: run the matrix of jobs, profile each one, draw the answer. The pipeline is in workflow/Snakefile.
#
#     snakemake --profile profiles/local                                    the embedded experiment
#     snakemake --profile profiles/local --configfile config/mine.yaml      another one
include: "workflow/Snakefile"


# Snakemake takes no default from a file that is included.
rule default:
    default_target: True
    input:
        rules.all.input,
    localrule: True
