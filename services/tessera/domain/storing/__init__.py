"""The state in bytes: its canonical form, its hash, snapshots."""
