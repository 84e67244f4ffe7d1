"""Figures of the placement engine, each beside its own floor or published baseline: `make bench-engine`."""
