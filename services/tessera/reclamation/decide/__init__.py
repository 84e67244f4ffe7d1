"""What reclamation finds, by idea: runs that are absent, runs whose ground is lost, GPUs that nobody uses. Pure."""
