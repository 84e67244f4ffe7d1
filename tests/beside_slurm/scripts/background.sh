#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=2
# Steps beside each other, then one that needs all of it.
for part in a b c; do
  srun --ntasks=1 --nodes=1 --exact prepare --part "$part" &
done
wait
srun train
