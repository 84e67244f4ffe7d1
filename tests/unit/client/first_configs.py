"""The file of `config init` for a cluster of these nodes, as text and as `tessera apply` reads it."""

from typing import Any

from tessera.client.cluster import applying
from tessera.client.cluster.first_config import ClusterSurvey, first_config
from tessera.client.input import files
from tessera_schemas.config import ConfigBody
from tessera_schemas.views import NodeView


def node(name: str, gpus: int = 8, model: str = "h100", **more: Any) -> NodeView:
    return NodeView(name=name, pool=more.pop("pool", "default"), ready=True, gpus=gpus, gpu_model=model, **more)


def written(*nodes: NodeView, tenants: tuple[str, ...] = ("demo",)) -> str:
    return first_config(ClusterSurvey("main", 7, nodes, tenants))


def read(text: str) -> ConfigBody:
    """As `tessera apply` takes it; nothing is left to fill."""
    found = applying.read_file(files.parse_yaml(text, "init"), "init")
    assert found.filled == ()
    return found.body
