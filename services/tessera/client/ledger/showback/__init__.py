"""A month of the ledger as one file of HTML."""
