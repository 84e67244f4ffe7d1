#!/bin/bash
#SBATCH --job-name=mpi-hello
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=8

# All ranks in one pod: mpirun has no way into other pods.
mpirun -np "$SLURM_CPUS_PER_TASK" ./hello
