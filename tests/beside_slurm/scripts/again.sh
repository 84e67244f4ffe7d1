#!/bin/bash
#SBATCH --requeue
#SBATCH --time=5
# Puts itself back in line from a trap, once.
trap 'scontrol requeue "$SLURM_JOB_ID"; sleep 60' USR1
train --after "${SLURM_RESTART_COUNT:-0}"
[ "${SLURM_RESTART_COUNT:-0}" -gt 0 ] || { kill -USR1 $$; sleep 60; }
report --after "$SLURM_RESTART_COUNT"
