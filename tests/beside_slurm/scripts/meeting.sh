#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:2
#SBATCH --mem=16G
# Where ranks meet: the first node's name and a port that the script draws once.
nodes=($(scontrol show hostnames "$SLURM_JOB_NODELIST"))
export MASTER_ADDR=${nodes[0]} MASTER_PORT=$((20000 + SLURM_JOB_ID % 1))
srun bash -c 'torchrun --node-rank "$SLURM_NODEID" --nnodes "$SLURM_NNODES" --master "$MASTER_ADDR:$MASTER_PORT"'
srun --ntasks=1 --nodes=1 -w "${nodes[1]}" python serve.py
