"""Amounts and commands as people and programs write them."""
