#!/bin/bash
# An array, an array whose tasks follow those of the same index, and one job after all of them: bash map-reduce.sh
set -e
map=$(tessera sbatch --parsable --array=0-15 --wrap='python map.py $SLURM_ARRAY_TASK_ID')
check=$(tessera sbatch --parsable --array=0-15 --dependency="aftercorr:$map" --wrap='python check.py $SLURM_ARRAY_TASK_ID')
tessera sbatch --dependency="afterok:$check" --wrap="python reduce.py"
