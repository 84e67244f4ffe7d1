#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=2
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-gpu=4
# The same GPUs, divided in several ways.
train --devices "$(echo "$CUDA_VISIBLE_DEVICES" | tr ',' '\n' | wc -l)"
srun train
srun --gpus-per-task=2 train
srun --ntasks=1 --nodes=1 --gpus-per-task=1 train
srun --gpu-bind=single:1 train
srun --gres=gpu:2 train
