#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks=3
# Tasks that do not lie evenly, and one that fails.
srun train
srun bash -c 'report --exit=$SLURM_PROCID'
