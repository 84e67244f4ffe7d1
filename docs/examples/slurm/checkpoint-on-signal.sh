#!/bin/bash
#SBATCH --job-name=long
#SBATCH --gpus=1
#SBATCH --qos=low
#SBATCH --requeue
#SBATCH --signal=B:TERM@120

# Evicted for others it is sent SIGTERM, has 120 s, and is queued again.
trap 'kill -TERM "$training"; wait "$training"' TERM
python train.py --resume-from /checkpoints &
training=$!
wait "$training"
