"""Requests and answers about data sets, beside those in `models`."""

from typing import Annotated, Literal

from pydantic import Field

from tessera.gateway.operations.models import AsOf
from tessera_schemas.base import Lenient
from tessera_schemas.cluster.node_terms import ToldPlaces


class DatasetDomain(Lenient):
    """Nodes of a topology domain that have a data set, of those that the caller sees."""

    domain: Annotated[str, Field(description="Value of the level's label")]
    has: Annotated[int, Field(description="Number of its nodes that have the data set")]
    nodes: Annotated[int, Field(description="Number of its nodes")]


class DatasetReader(Lenient):
    """A job that waits in a queue and reads a data set."""

    job_id: str
    name: str
    why: Annotated[str, Field(description="Why it waits, in a sentence; empty: not looked at yet")] = ""


class DatasetPlaces(Lenient):
    """A data set with the nodes that have it, as far as runs that named it have shown, and as nodes say themselves."""

    tenant: str
    dataset: Annotated[str, Field(description="Name within the tenant")]
    size_bytes: Annotated[
        int, Field(description="Size in bytes, as the last run said, else as the first job that waits says; 0: nobody")
    ]
    nodes: Annotated[tuple[str, ...], Field(description="Nodes on which runs have read it, or that its tenant told")]
    used_ts: Annotated[
        int, Field(description="Last time that a run began or ended to use it, or that its tenant told; 0: never")
    ]
    told_nodes: Annotated[tuple[str, ...], Field(description="Nodes that say themselves that they have it")] = ()
    level: Annotated[str, Field(description="Topology level of `domains`: that of the caches, else the narrowest")] = ""
    domains: Annotated[tuple[DatasetDomain, ...], Field(description="Domains with a node that has it")] = ()
    waiting: Annotated[int, Field(description="Number of jobs that wait and read it")] = 0
    readers: Annotated[tuple[DatasetReader, ...], Field(description="The first 8 of them, by when they came")] = ()


class PlacesBody(ToldPlaces):
    """Nodes that have a data set of the caller's, and nodes that have it no more; others stay as they are."""


class NotedPlaces(Lenient):
    """accepted: admission took it. stored: it has not answered in time. known: it was known within the hour."""

    dataset: str
    state: Literal["accepted", "stored", "known"]
    as_of: AsOf


class DatasetList(Lenient):
    as_of: AsOf
    items: tuple[DatasetPlaces, ...]
