"""What only the Snakemake pipeline needs: its signals, its jobs in Slurm's queue, and outcomes that it keeps."""
