"""Data sets that users' pods say they read, in an annotation, as those of the job. Pure."""

from collections.abc import Sequence

from pydantic import ValidationError

from tessera.binder.adoption.decide.roles import invalid
from tessera.binder.workloads.reading import mapping, no, text
from tessera_schemas.base import Json
from tessera_schemas.cluster.labels import DATASETS_ANNOTATION
from tessera_schemas.job import DatasetHint
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.text.quantities import QuantityError, quantity

FIELD = f"metadata.annotations[{DATASETS_ANNOTATION}]"


def datasets_of(pods: Sequence[Json]) -> tuple[DatasetHint, ...] | Reason:
    """All that any of the pods names, each once, by name; or what is wrong with a word."""
    found = dict[str, DatasetHint]()
    for words in dict.fromkeys(text(mapping(pod, "metadata", "annotations"), DATASETS_ANNOTATION) for pod in pods):
        for word in filter(None, map(str.strip, words.split(","))):
            name, _, size = word.partition("=")
            try:
                hint = DatasetHint(name=name.strip(), size_bytes=int(quantity(size.strip())))
            except QuantityError:
                return no(Code.INVALID_FIELD, FIELD, f"{word!r}: write NAME=SIZE, as corpus=500Gi")
            except ValidationError as error:
                return invalid(error, FIELD)
            if found.setdefault(hint.name, hint) != hint:
                return no(Code.INVALID_FIELD, FIELD, f"{hint.name} has two sizes")
    return tuple(found[name] for name in sorted(found))
