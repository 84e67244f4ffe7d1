"""Explanations, as the command prints them; the gateway gives the same ones."""

from tessera.engine.explain import Explanation, explain

__all__ = ["Explanation", "explain"]
