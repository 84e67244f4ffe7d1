"""The objects of the simulated cluster."""
