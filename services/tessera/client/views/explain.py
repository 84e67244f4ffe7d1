"""An explanation for people: why a job stands where it stands, who holds what it needs, its story, in 80 columns."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from textwrap import wrap
from typing import Any

from tessera.client.views.rendering import COLUMNS, local_of, zone_name
from tessera_schemas.reasons import PublicReason
from tessera_schemas.text.units import format_age

UNKNOWN = "unknown"
"""In the place of a phase, for a job that was never taken in or is forgotten."""
STORY_LINES = 40
"""Of a long story the newest lines are told; `-o json` tells all."""


def gone_sentence(first_n: int) -> str:
    """What is told in place of a story's beginning, from record `first_n` on, that is no longer where it was read."""
    return (
        f"what happened before, from record {first_n} on, is not kept here any more: an operator has it, by `tessera "
        "ledger story` or in the backup that `tessera ledger roll` wrote"
    )


def explanation_lines(found: Mapping[str, Any], now_ms: int, said: Sequence[str] = ()) -> list[str]:
    """The explanation, with what else is `said` of the job and its story, in lines of at most 80 columns."""
    if found["phase"] == UNKNOWN:
        lines = ["It is in no queue: it was never taken in, or its key is remembered no more."]
    else:
        lines = [*_answer_lines(found, now_ms), *(part for line in said for part in wrapped(line))]
    story = list(story_lines([_story_line(each) for each in found["story"]]))
    return [
        *lines,
        *(["", f"What happened (times in {zone_name()}):", *story] if story else []),
        f"as of {found['as_of']}",
    ]


def _answer_lines(found: Mapping[str, Any], now_ms: int) -> list[str]:
    others = [f"Also {PublicReason.model_validate(each).sentence()}" for each in found.get("others", ())]
    place = _place(found.get("position", 0), found.get("in_line", 0), found.get("pool", ""), found.get("queue", ""))
    holders = [_held(each["text"], each["since_ts"], each["until_ts"], now_ms) for each in found.get("holders", ())]
    holders += found.get("other_holders", ())
    changes = [change["text"] for change in found.get("changes", ())]
    quote = [f"It starts {found['quote']['words']}, by its quote."] if found.get("quote") else []
    said = [found["sentence"], *place, *quote, *found.get("said", ()), *others]
    return _paragraphs(said, holders, changes, found.get("tried", 0))


def _place(position: int, in_line: int, pool: str, queue: str) -> list[str]:
    return [f"Place {position} of {in_line} in line for pool {pool}, queue {queue}."] if position else []


def _paragraphs(sentences: Iterable[str], holders: Sequence[str], changes: Sequence[str], tried: int) -> list[str]:
    lines = [line for sentence in sentences for line in wrapped(sentence)]
    if holders:
        lines += ["", "Held by others:", *(line for each in holders for line in _item(each))]
    if changes:
        lines += ["", "Each of these alone would start it now (tried, not guessed):"]
        lines += [line for each in changes for line in _item(each)]
    elif tried > 1:
        lines += ["", f"None of {tried} single changes that were tried would start it now."]
    return lines


def story_lines(lines: Sequence[str]) -> Iterator[str]:
    """The newest lines of the story, oldest first."""
    if len(lines) > STORY_LINES:
        yield f"({len(lines) - STORY_LINES} earlier lines; `-o json` tells all)"
    for line in lines[-STORY_LINES:]:
        first, *more = wrap(line, COLUMNS, subsequent_indent=" " * 24, break_on_hyphens=False) or [""]
        yield first
        yield from more


def _story_line(each: Mapping[str, Any]) -> str:
    """A line of the story of the job's public events."""
    told = "  ".join(filter(None, (each["event"], each["why"])))
    return f"{local_of(each['time']):%m-%d %H:%M:%S}  {told}".rstrip()


def _held(text: str, since_ts: int, until_ts: int, now_ms: int) -> str:
    since = f", for {format_age(now_ms - since_ts)}" if since_ts else ""
    left = f", {format_age(until_ts - now_ms)} more at most" if until_ts else ""
    return f"{text}{since}{left}"


def wrapped(text: str, indent: int = 2) -> list[str]:
    """Lines of a paragraph, of at most 80 columns; those after the first one stand in by so many."""
    return wrap(text, COLUMNS, subsequent_indent=" " * indent, break_on_hyphens=False)


def _item(text: str) -> list[str]:
    return wrap(text, COLUMNS, initial_indent="  - ", subsequent_indent="    ", break_on_hyphens=False)
