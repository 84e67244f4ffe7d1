"""Input that nobody sane sends: corpora made here, generated cases, byte flips. `make bad-input` runs many of them."""
