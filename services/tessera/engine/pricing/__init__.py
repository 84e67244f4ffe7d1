"""Prices of pods: the learner, the dual-price solver and the simulated filling, on compiled arrays."""
