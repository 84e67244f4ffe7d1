"""The fold: what each record does to the state."""
