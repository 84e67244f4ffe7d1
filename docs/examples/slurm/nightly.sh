#!/bin/bash
#SBATCH --job-name=nightly
#SBATCH --dependency=singleton
#SBATCH --begin=tomorrow
#SBATCH --export=DATA=/data/today
#SBATCH --chdir=/app
#SBATCH --exclude=gpu-[1-2]
##SBATCH --constraint=fast-disk  # with one # where nodes have such a label

python report.py --job "$SLURM_JOB_ID" --from "$DATA"
