#!/bin/bash
#SBATCH --job-name=sweep
#SBATCH --array=0-99%10
#SBATCH --gpus-per-task=1
#SBATCH --cpus-per-task=4 --mem-per-cpu=4G
#SBATCH --time=1:00:00
#SBATCH --output=logs/%A_%a.out

rates=(1e-2 3e-3 1e-3 3e-4)
python train.py --seed "$SLURM_ARRAY_TASK_ID" --rate "${rates[$((SLURM_ARRAY_TASK_ID % 4))]}"
