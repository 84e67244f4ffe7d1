#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=2
# Several programs in one step, by a file.
cat >programs.conf <<END
0    prepare --of %t
1-2  train --rank %t --local %o
3    report
END
srun --multi-prog programs.conf
