"""Whether a proposed configuration may be put to the committer. Its form was checked when it was read."""

from tessera.admission.decide.templates import find_template_faults
from tessera_schemas.bounds import unservable
from tessera_schemas.config import ConfigBody
from tessera_schemas.reading import refusal
from tessera_schemas.reasons import Code, Reason


def find_config_faults(body: ConfigBody) -> list[Reason]:
    """All faults of a proposed configuration; the committer judges whether it is up to date."""
    against = [
        refusal(Code.INVALID_FIELD, found.field, found.detail, found.numbers or None) for found in unservable(body)
    ]
    return against + find_template_faults(body)
