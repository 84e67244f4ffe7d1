"""MIG instances of GPUs: those that a node has, and those that it would have if it were cut anew."""
