#!/bin/bash
#SBATCH --job-name=llama
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=16
#SBATCH --mem=100G
#SBATCH --time=1-00:00:00

export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
# Each node has its own number: within '…' the task's shell reads it, not the script's.
srun bash -c 'exec torchrun \
  --nnodes "$SLURM_NNODES" --nproc-per-node "$SLURM_GPUS_ON_NODE" --node-rank "$SLURM_NODEID" \
  --master-addr "$MASTER_ADDR" --master-port 29500 train.py'
