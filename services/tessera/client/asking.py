"""Commands with their answers, as every client sends them; the gateway sends them in the same way."""

from tessera.kernel.asking import ANSWER_SECONDS, Asking

__all__ = ["ANSWER_SECONDS", "Asking"]
