"""Judgement of what is said of machines: how they are, which are to be empty, which seem lost, and which are sick."""
