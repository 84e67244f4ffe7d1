"""Care of a ledger by its operator: backup, restore, repair, roll-over, heads, replay."""
