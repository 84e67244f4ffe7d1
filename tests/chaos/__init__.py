"""A campaign of faults on real processes: `make chaos`."""
