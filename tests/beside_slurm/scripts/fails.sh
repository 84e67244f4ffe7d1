#!/bin/bash
#SBATCH --job-name="a name of words"
# A failed step does not fail the job; the script's own end does.
srun train --exit=7 || echo "step ended with $?"
report --exit=4
