"""Account of a shard's GPUs: who had each of them when, from the ledger's records and not from samples. Pure."""
