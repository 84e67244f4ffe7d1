"""Devices of simulated worlds beyond those of all: nodes of many kinds, and drivers that publish."""
