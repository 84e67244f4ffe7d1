"""What `pause` refuses before anything is sent: a hold would not keep it from running again."""

import pytest

from tessera.client.commands.sessions.pausing import check_pausable
from tessera.client.outcomes import Exit, Failure
from tests.unit.client.job_views import named


def test_a_lone_pod_of_a_user_is_not_paused_since_its_controller_would_make_it_anew() -> None:
    of_a_hub = named("a", "running").model_copy(update={"owner": "Pod/jupyter-ana"})
    with pytest.raises(Failure, match="Pod/jupyter-ana would be gone, or made anew") as refused:
        check_pausable(of_a_hub)
    assert refused.value.code is Exit.USAGE
    check_pausable(named("a", "running").model_copy(update={"owner": "Job/train"}))
    check_pausable(named("a", "running"))
