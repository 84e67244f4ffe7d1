"""Claims on devices in submitted jobs: what only the binder may say of users' pods is refused by its field."""

from tessera.admission.decide.policy import AdmissionPolicy, Pools, tree_of
from tessera.admission.decide.verdict import find_job_faults
from tessera_schemas.commands import AdoptJob, SubmitJob
from tessera_schemas.config import Config
from tests.builders import config_body, job_spec
from tests.published_devices import claim, claiming


def test_a_claim_that_stands_in_the_cluster_is_of_users_pods_alone() -> None:
    tree = tree_of(Config(version=1, body=config_body()))
    standing = claim().model_copy(update={"object_name": "mine", "allocated": True})
    spec = job_spec(claiming(claim("own"), standing.model_copy(update={"name": "theirs"})))
    policy = AdmissionPolicy(1, tree, Pools([]))
    submit = SubmitJob.model_construct(tenant="research", spec=spec)
    fields = [reason.field for reason in find_job_faults(submit, "research", policy)]
    assert "roles[0].resources.claims[1].object_name" in fields
    assert "roles[0].resources.claims[0].object_name" not in fields
    adopted = AdoptJob.model_construct(spec=spec)
    assert not [reason for reason in find_job_faults(adopted, "research", policy) if "claims" in reason.field]
