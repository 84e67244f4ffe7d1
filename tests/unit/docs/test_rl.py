"""The examples of the page on reinforcement learning do what it says."""

import json
import re
from pathlib import Path

import yaml

from tessera.client.input import files
from tessera_schemas.base import job_id
from tessera_schemas.job import JobSpec
from tessera_schemas.reasons import Code
from tests.builders import SHARD, admitted
from tests.rounds import Rounds, share

PAGE = (Path(__file__).parents[3] / "docs" / "rl.md").read_text()


def shown(index: int) -> JobSpec:
    """The job of one of the page's examples."""
    return JobSpec.model_validate_json(
        json.dumps(files.job_spec(yaml.safe_load(re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)[index]), "rl.md"))
    )


def test_the_attached_job_runs_beside_its_learner_and_ends_with_it() -> None:
    spec = shown(0)
    assert spec.attach_to is not None
    assert spec.attach_to.by_id(SHARD, "lab").job == job_id(SHARD, "lab", "ppo-learner")
    rounds = Rounds(share("default", 8, parent=None), nodes={"node-a": 8})
    rounds.submit("ppo-learner", gpus=4, queue="default")
    attached = spec.attach_to.by_id(SHARD, "lab")
    rounds.commit(admitted("rollout", spec.model_copy(update={"attach_to": attached})))
    rounds.settle()
    assert rounds.running("ppo-learner", "rollout")
    rounds.finish("ppo-learner")
    rounds.settle()
    assert rounds.state.ended.get(job_id(SHARD, "lab", "rollout")).reason.code is Code.TARGET_ENDED
