"""The account of GPUs and decayed usage, by a stored ledger or the gateway: sums, columns for finance, parts."""
