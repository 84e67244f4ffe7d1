"""The example of resizing pods in place says the same size to the command, over HTTP and in Slurm's words."""

import json
import re
from datetime import UTC, datetime
from pathlib import Path

from tessera.client.slurm.updating import read_update
from tessera.gateway.operations.models import SizeBody
from tessera_schemas.commands import ResizePods
from tessera_schemas.text import quantities
from tessera_schemas.work.spec_changes import PodSize

PAGE = (Path(__file__).parents[3] / "docs" / "pods.md").read_text()
SECTION = PAGE.partition("## Resize in place")[2].partition("\n## ")[0]


def test_the_example_is_one_size_however_it_is_asked_for() -> None:
    (cpu, memory) = re.findall(r"tessera resize \$JOB --cpu (\S+) --memory (\S+)", SECTION)[0]
    size = PodSize(cpu_milli=quantities.cpu_milli(cpu), memory_bytes=quantities.memory_bytes(memory))
    (body,) = re.findall(r"/resources` with `(\{.*?\})`", SECTION)
    assert SizeBody.model_validate(json.loads(body)).size == size
    (words,) = re.findall(r"scontrol update (JobId=JOB Min\S+ Min[^`]+)`", SECTION)
    (command,) = read_update(words.split(), datetime(2030, 1, 1, tzinfo=UTC)).commands("a" * 20, {})
    assert isinstance(command, ResizePods)
    assert command.size == size
