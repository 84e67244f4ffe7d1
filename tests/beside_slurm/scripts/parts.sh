#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=2
# One step of two parts, each on nodes of its own.
srun --ntasks=1 --nodes=1 prepare --serve : --ntasks=2 --nodes=1 train
