"""Slurm's words read as ours: options and `#SBATCH` lines become a job, phases become state codes. Pure."""
