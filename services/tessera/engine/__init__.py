"""
Pure decisions: a snapshot in, a verdict out. One engine serves scheduler, replay, explain and admission.

A change of behaviour is a new `ENGINE_ID`; a replay recomputes the records whose engine id this build carries.
"""

ENGINE_ID = "tessera-10"
ORDER_ENGINE_ID = "tessera-10"
"""The rule of orders. Older ones are recomputed as well (`ordering.RULES`, and `LOOKS_OF` of the decisions)."""
