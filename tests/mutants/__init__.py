"""Mutants: patches that each break one promise, with the tests that must notice."""
