#!/bin/bash
# Each after the success of the one before, where one fails.
first=$(sbatch --parsable --wrap 'prepare')
second=$(sbatch --parsable --dependency=afterok:$first --wrap 'train --exit=3')
sbatch --dependency=afterok:$second --wrap 'report'
sbatch --dependency=afternotok:$second --job-name=mend --wrap 'report --after-failure'
sbatch --dependency=afterany:$first:$second --wrap 'report --anyway'
