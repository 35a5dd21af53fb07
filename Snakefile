# multicard: run the matrix of jobs, profile each one, draw the answer. The pipeline is in workflow/Snakefile.
#
#     snakemake --profile profiles/local                                    the embedded experiment
#     snakemake --profile profiles/local --configfile config/mine.yaml      another one
include: "workflow/Snakefile"
