#!/bin/bash
# A command without a script.
sbatch --job-name=wrapped --cpus-per-task=2 --time=10 --wrap 'train --workers "$SLURM_CPUS_PER_TASK" && report --of "$SLURM_JOB_ID"'
