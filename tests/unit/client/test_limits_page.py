"""The example of docs/limits.md, read as `tessera apply` reads a file."""

import re
from pathlib import Path

import pytest
import yaml

from tessera.client.input.files import config_body
from tessera.client.outcomes import Failure
from tessera_schemas.config import Tenant
from tests.builders import GIB

PAGE = (Path(__file__).parents[3] / "docs" / "limits.md").read_text()


def test_limits_of_pods_are_written_as_quantities() -> None:
    section = PAGE.partition("## Jobs, GPUs and pods")[2]
    (block,) = re.findall(r"```yaml\n(.*?)```", section.partition("\n## ")[0], re.DOTALL)
    (tenant,) = config_body(yaml.safe_load(block), "limits.md")["tenants"]
    limits = Tenant.model_validate(tenant).limits
    assert (limits.services, limits.sessions, limits.sessions_per_user) == (20, 40, 2)
    assert (limits.pods, limits.pod_default.cpu_milli, limits.pod_min.cpu_milli) == (500, 2_000, 500)
    assert (limits.pod_max.memory_bytes, limits.pod_max.gpus) == (512 * GIB, 8)


def test_a_bound_of_pods_that_is_no_quantity_is_said_by_name() -> None:
    with pytest.raises(Failure, match="cpu"):
        config_body({"tenants": [{"name": "lab", "limits": {"pod_max": {"cpu": "much"}}}]}, "file")
