"""Data sets that a node says it has: by an operator's annotation, and by the labels of Fluid. Pure."""

import re
from collections.abc import Iterator, Mapping

from tessera_schemas.cluster.devices import EVERY_TENANT
from tessera_schemas.cluster.labels import DATASETS_ANNOTATION, FLUID_CACHE_PREFIX

_NAME = "[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
_WORD = re.compile(rf"((?P<tenant>{_NAME})/)?(?P<name>{_NAME})")
DATASETS_MAX = 256


def told_datasets(labels: Mapping[str, str], annotations: Mapping[str, str]) -> tuple[str, ...]:
    """`TENANT/NAME` of each, in order, at most `DATASETS_MAX`; words that are no names are told by `unread_words`."""
    return tuple(_all_named(labels, annotations)[:DATASETS_MAX])


def unread_words(labels: Mapping[str, str], annotations: Mapping[str, str]) -> tuple[str, ...]:
    """Words of a node about data sets that count for nothing: no names, as they stand, and names beyond the most."""
    words = [word.strip() for word in annotations.get(DATASETS_ANNOTATION, "").split(",")]
    unnamed = (word for word in words if word and not _WORD.fullmatch(word))
    return (*unnamed, *_all_named(labels, annotations)[DATASETS_MAX:])


def _all_named(labels: Mapping[str, str], annotations: Mapping[str, str]) -> list[str]:
    return sorted({*_annotated(annotations.get(DATASETS_ANNOTATION, "")), *_kept_by_fluid(labels)})


def _annotated(words: str) -> Iterator[str]:
    for word in words.split(","):
        if (match := _WORD.fullmatch(word.strip())) is not None:
            yield f"{match['tenant'] or EVERY_TENANT}/{match['name']}"


def _kept_by_fluid(labels: Mapping[str, str]) -> Iterator[str]:
    """A namespace is a tenant's, and both it and the data set may have hyphens: each way to read the label is told."""
    for key, value in labels.items():
        words = key.removeprefix(FLUID_CACHE_PREFIX).split("-") if key.startswith(FLUID_CACHE_PREFIX) else ()
        # Of the same prefix are labels with amounts; only "true" says that a cache of the data set is there.
        for at in range(1, len(words)) if value == "true" else ():
            yield from _annotated("/".join(("-".join(words[:at]), "-".join(words[at:]))))
