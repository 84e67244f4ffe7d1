#!/bin/bash
#SBATCH --job-name=ddp
#SBATCH --ntasks=8
#SBATCH --gpus-per-task=1
#SBATCH --cpus-per-task=4
#SBATCH --mem-per-gpu=16G

export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
# Each task has its own numbers: within '…' its own shell reads them, not the script's.
srun bash -c 'exec python train.py --rank "$SLURM_PROCID" --world-size "$SLURM_NTASKS" --local-rank "$SLURM_LOCALID"'
