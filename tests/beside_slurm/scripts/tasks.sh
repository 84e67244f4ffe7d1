#!/bin/bash
#SBATCH -n 6 -c 2
#SBATCH -J tasks
# So many tasks, and no word of nodes.
prepare
srun train --threads "$SLURM_CPUS_PER_TASK"
srun -n 2 report
