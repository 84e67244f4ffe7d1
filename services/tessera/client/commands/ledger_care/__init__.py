"""The commands for the care of a ledger."""
