"""The pods of runs: made, bound, followed, stopped."""
