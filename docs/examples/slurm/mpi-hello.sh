#!/bin/bash
#SBATCH --job-name=mpi-hello
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=8

# Eight ranks in one pod; with several nodes mpirun starts its ranks there by steps.
mpirun -np "$SLURM_CPUS_PER_TASK" ./hello
