#!/bin/bash
#SBATCH --time=0-02:30 --nodes=1-1 --gpus=1 --gpus-per-node=1
# A function of the shell around it, and a step that gives up.
launch() { timeout 20 srun "$@"; }
launch --ntasks=1 train
echo -n one two | xargs -n1 srun --ntasks=1 --quiet report
