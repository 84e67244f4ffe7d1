#!/bin/bash
#SBATCH --ntasks=2
#SBATCH --export=ALL,OWN_RATE=0.5
#SBATCH --mem-per-cpu=300M
# What comes from the shell, from the option, from the script, and for one step alone.
export OWN_RUN="run of $OWN_SWEEP" OMP_NUM_THREADS=4
srun train --rate "$OWN_RATE"
srun --export=ALL,OWN_STEP=2 -n1 report
OWN_ONCE=1 srun -n1 report
