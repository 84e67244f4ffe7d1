"""Tessera: an event-driven scheduler for GPU clusters. The folders are the architecture; see services/README.md."""
