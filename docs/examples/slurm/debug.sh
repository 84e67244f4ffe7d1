#!/bin/bash
#SBATCH --job-name=debug
#SBATCH --gpus=1
#SBATCH --time=30
#SBATCH --hold

# Let go with `tessera release debug`, then: kubectl exec -it POD -- bash
sleep infinity
