#!/bin/bash
#SBATCH --job-name=finetune
#SBATCH --gpus=1
#SBATCH --cpus-per-task=8
#SBATCH --mem=64G
#SBATCH --time=4:00:00
#SBATCH --output=finetune-%j.log

python finetune.py --workers "$SLURM_CPUS_PER_TASK"
