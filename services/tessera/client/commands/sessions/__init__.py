"""Sessions: work that lasts as long as a person uses it."""
