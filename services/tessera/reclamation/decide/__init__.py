"""Findings of reclamation, by duty: absent runs, runs that lost their ground, idle GPUs. Pure."""
