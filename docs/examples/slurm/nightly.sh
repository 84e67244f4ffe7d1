#!/bin/bash
#SBATCH --job-name=nightly
#SBATCH --dependency=singleton
#SBATCH --begin=tomorrow
#SBATCH --export=DATA=/data/today
#SBATCH --chdir=/app
#SBATCH --constraint=fast-disk
#SBATCH --exclude=gpu-[1-2]

python report.py --job "$SLURM_JOB_ID" --from "$DATA"
