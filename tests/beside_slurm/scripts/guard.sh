#!/bin/bash
#SBATCH --ntasks=2 --gpus-per-task=1
# Strict, and begun only where it is the program that was called.
set -euo pipefail
main() { srun train --in "${1##*/}"; }
if [[ "${BASH_SOURCE[0]}" == "$0" ]]; then
  main "$@"
fi
[ "$BASH_SOURCE" != "${0}" ] || report
