"""Parts of the Snakemake pipeline: its signals, its jobs in Slurm's queue, and the outcomes that it keeps."""
