#!/bin/bash
#SBATCH --job-name=llama
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=16
#SBATCH --mem=100G
#SBATCH --time=1-00:00:00

nodes=($(scontrol show hostnames "$SLURM_JOB_NODELIST"))
srun torchrun \
  --nnodes "$SLURM_NNODES" --nproc-per-node "$SLURM_GPUS_ON_NODE" --node-rank "$SLURM_NODEID" \
  --master-addr "${nodes[0]}" --master-port 29500 train.py
