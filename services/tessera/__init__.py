"""Tessera: an event-driven scheduler for GPU clusters. The folders are the architecture; see docs/architecture.md."""
