#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=2
# Files of a step by job and task.
srun --output=%j-%t.out train
srun --output=merged-%j.out --label report
srun --ntasks=1 --nodes=1 --output=first.out hostname
