"""Explanations for people: the engine's answer with the time limits of whoever holds what is needed, in 80 columns."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from textwrap import wrap
from typing import Any

from tessera.client.rendering import COLUMNS, plain
from tessera.client.story import StoryLine
from tessera.engine.explain.blockers import Blockers, Holder
from tessera.engine.explain.explanation import Explanation, explain
from tessera.kernel.ledger.shard import decode_entry
from tessera.kernel.ports import Ledger
from tessera_schemas.facts import JobAdmitted
from tessera_schemas.reasons import PublicReason
from tessera_schemas.units import format_age

__all__ = ["Explanation", "explain", "explained", "explanation_lines", "time_limits"]

STORY_LINES = 40
"""Of a long story the newest lines are told; `-o json` tells all."""


async def time_limits(ledger: Ledger, holders: Blockers) -> dict[str, int]:
    """The latest end of each named run by its job's time limit, in ms; runs without a limit are left out."""
    found: dict[str, int] = {}
    for holder in holders.named:
        message = await ledger.read(holder.taken_n) if holder.taken_n and holder.since_ts else None
        if message is None:
            continue
        fact = decode_entry(message).message.facts[holder.fact_index].fact
        if isinstance(fact, JobAdmitted) and fact.spec.time_limit_seconds is not None:
            found[holder.run_id] = holder.since_ts + fact.spec.time_limit_seconds * 1000
    return found


def explanation_lines(answer: Explanation, until: Mapping[str, int], now_ms: int) -> list[str]:
    """The explanation without the job's story, in lines of at most 80 columns."""
    place = (answer.position, answer.in_line, answer.pool, answer.job.queue)
    sentences = [
        answer.sentence(),
        *_place(*place),
        *answer.sentences,
        *(f"Also {each.sentence()}" for each in answer.others),
    ]
    holders = [
        _held(each.describe(), each.since_ts, each.until_ts or until.get(each.run_id, 0), now_ms)
        for each in answer.holders.named
    ]
    holders += [others.describe() for others in answer.holders.others]
    return _paragraphs(sentences, holders, [change.describe() for change in answer.changes], answer.tried)


def answered_lines(found: Mapping[str, Any], now_ms: int) -> list[str]:
    """The gateway's explanation with the story of its events, in lines of at most 80 columns."""
    others = [f"Also {PublicReason.model_validate(each).sentence()}" for each in found.get("others", ())]
    place = _place(found.get("position", 0), found.get("in_line", 0), found.get("pool", ""), found.get("queue", ""))
    holders = [_held(each["text"], each["since_ts"], each["until_ts"], now_ms) for each in found.get("holders", ())]
    holders += found.get("other_holders", ())
    changes = [change["text"] for change in found.get("changes", ())]
    said = [found["sentence"], *place, *found.get("said", ()), *others]
    lines = _paragraphs(said, holders, changes, found.get("tried", 0))
    story = [f"{each['time'][:19]}  {each['event']}" + f"  {each['why']}".rstrip() for each in found["story"]]
    if story:
        lines += ["", *(line for each in story[-STORY_LINES:] for line in wrapped(each))]
    return [*lines, f"as of {found['as_of']}"]


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


def story_lines(lines: list[StoryLine]) -> Iterator[str]:
    """The newest lines of the story, oldest first."""
    if len(lines) > STORY_LINES:
        yield f"({len(lines) - STORY_LINES} earlier lines; `-o json` tells all)"
    for line in lines[-STORY_LINES:]:
        first, *more = wrap(line.line(), COLUMNS, subsequent_indent=" " * 24, break_on_hyphens=False) or [""]
        yield first
        yield from more


def explained(answer: Explanation | None, lines: list[StoryLine], until: Mapping[str, int]) -> dict[str, Any]:
    """The answer for programs."""
    story = [asdict(line) for line in lines]
    if answer is None:
        return {"phase": "unknown", "story": story}
    return {
        "job_id": answer.job.job_id,
        "name": answer.job.name,
        "queue": answer.job.queue,
        "phase": answer.phase,
        "reason": None if answer.reason is None else plain(answer.reason),
        "others": [plain(reason) for reason in answer.others],
        "sentence": answer.sentence(),
        "position": answer.position,
        "in_line": answer.in_line,
        "pool": answer.pool,
        "notes": list(answer.sentences),
        "holders": [_holder(holder, until) for holder in answer.holders.named],
        "other_holders": [asdict(others) for others in answer.holders.others],
        "changes": [asdict(change) for change in answer.changes],
        "tried": answer.tried,
        "story": story,
    }


def _holder(holder: Holder, until: Mapping[str, int]) -> dict[str, Any]:
    value = asdict(holder) | {"until_ts": holder.until_ts or until.get(holder.run_id, 0)}
    return {name: part for name, part in value.items() if name not in ("taken_n", "fact_index")}


def _held(text: str, since_ts: int, until_ts: int, now_ms: int) -> str:
    since = f", for {format_age(now_ms - since_ts)}" if since_ts else ""
    left = f", {format_age(until_ts - now_ms)} more at most" if until_ts else ""
    return f"{text}{since}{left}"


def wrapped(text: str) -> list[str]:
    """Lines of a paragraph, of at most 80 columns."""
    return wrap(text, COLUMNS, subsequent_indent="  ", break_on_hyphens=False)


def _item(text: str) -> list[str]:
    return wrap(text, COLUMNS, initial_indent="  - ", subsequent_indent="    ", break_on_hyphens=False)
