"""
Orders: per pool, who is next; queueing alone makes them.

An order is a pure function of (state at `basis_n`, `ts`, engine, policy).
"""

from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from tessera_schemas.base import Count, JobId, Millis, Name, Strict

HEADS_MAX = 512


class Order(Strict):
    """The next jobs of one pool, first in line first."""

    v: Literal[1]
    pool: Name
    basis_n: Count
    ts: Millis
    engine: str
    policy: Count
    jobs: Annotated[tuple[JobId, ...], Field(max_length=HEADS_MAX)] = ()


ORDER: TypeAdapter[Order] = TypeAdapter(Order)
