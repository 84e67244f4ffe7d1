"""Paths that jobs may mount, as the configuration maps them to claims."""

import posixpath
from typing import Annotated, Self

from pydantic import Field, model_validator

from tessera_schemas.base import Name, Strict
from tessera_schemas.work.pod_template import ObjectName, Path


class Mount(Strict):
    """
    Path under which jobs know the files of a claim: in a volume's `path`, and in `--container-mounts` of scripts.

    The claim is one of the namespace of the job's tenant. A path below this one is the same folder within the claim.
    """

    path: Annotated[Path, Field(description="Path as jobs give it, such as /data")]
    claim: Annotated[ObjectName, Field(description="Name of the volume claim, the same in each tenant's namespace")]
    read_only: Annotated[bool, Field(description="Mount read-only, whatever the job asks for")] = False
    tenants: Annotated[tuple[Name, ...], Field(description="Tenants whose jobs may mount the path; empty: all")] = ()

    @model_validator(mode="after")
    def _plain(self) -> Self:
        if self.path == "/" or posixpath.normpath(self.path) != self.path:
            raise ValueError("path: write a directory below /, without .. and without a slash at its end")
        return self
