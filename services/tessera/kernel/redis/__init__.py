"""The ProjectionStore port over Redis."""
