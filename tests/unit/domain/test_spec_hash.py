"""The fold's digest of a spec is the contract's."""

from hypothesis import given
from hypothesis import strategies as st

from tessera.domain.storing.canonical import spec_hash
from tessera_schemas.facts import JobAdmitted
from tessera_schemas.job import JobSpec
from tessera_schemas.work.templates import FromTemplate
from tests.builders import job_spec

TEXT = st.text(max_size=20) | st.just('\x7f\x1f"\\/ü€\u2028🙂')


def _admitted(spec: JobSpec, template: FromTemplate | None = None) -> JobAdmitted:
    return JobAdmitted(
        kind="job_admitted", job_id="a" * 20, tenant="lab", key="k", spec=spec, template=template, trace=""
    )


def _with(env: dict[str, str]) -> JobSpec:
    spec = job_spec()
    role = spec.roles[0]
    template = role.template.model_copy(update={"env": env})
    return spec.model_copy(update={"roles": (role.model_copy(update={"template": template}),)})


@given(st.dictionaries(st.sampled_from(["Z", "a", "_b", "A1"]), TEXT, max_size=4))
def test_whatever_letters_the_spec_is_written_in_it_is_the_digest_of_the_contract(env: dict[str, str]) -> None:
    fact = _admitted(_with(env))
    assert spec_hash(fact) == fact.digest()


def test_the_order_in_which_a_map_was_written_does_not_matter() -> None:
    one, other = _with({"A": "1", "B": "2"}), _with({"B": "2", "A": "1"})
    assert spec_hash(_admitted(one)) == spec_hash(_admitted(other)) != spec_hash(_admitted(_with({"A": "1"})))


def test_of_what_a_template_made_it_is_the_digest_of_what_was_asked() -> None:
    source = FromTemplate(name="train", config_version=1, asked="0" * 64)
    assert spec_hash(_admitted(job_spec(), source)) == "0" * 64
