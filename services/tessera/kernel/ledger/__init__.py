"""The ledger as a service reads it: the stream, the fold that follows it, its snapshots, its end."""
