"""The commands that Slurm's users know."""
