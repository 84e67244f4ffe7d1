"""Jobs, nodes and queues as Slurm's commands print them."""
