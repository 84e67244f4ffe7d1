#!/bin/bash
# Three steps, each after the success of the one before: bash chain.sh, where `tessera` is at hand.
set -e
prepared=$(tessera sbatch --parsable --wrap="python prepare.py" --cpus-per-task=16)
trained=$(tessera sbatch --parsable --dependency="afterok:$prepared" single-gpu.sh)
tessera sbatch --dependency="afterok:$trained" --wrap="python report.py"
tessera sbatch --dependency="afternotok:$trained" --wrap="python clean_up.py"
