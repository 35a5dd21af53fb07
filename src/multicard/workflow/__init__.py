"""Parts of the Snakemake pipeline alone: its signals, its jobs in Slurm's queue, and outcomes that it keeps."""
