#!/bin/bash
#SBATCH --array=2-8:3%2
#SBATCH --mem=500M
rates=(0 0 1e-2 0 0 1e-3 0 0 1e-4)
train --rate "${rates[$SLURM_ARRAY_TASK_ID]}" "$@"
