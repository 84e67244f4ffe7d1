"""A shard: its services, streams and keys, and how its ledger is stored."""
