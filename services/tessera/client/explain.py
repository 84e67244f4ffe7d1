"""Explanations for people: the engine's answer with the time limits of whoever holds what is needed, in 80 columns."""

from collections.abc import Iterator, Mapping
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
from tessera_schemas.units import said_age

__all__ = ["Explanation", "explain", "explained", "explanation_lines", "time_limits"]

STORY_LINES = 40
"""Of a long story the newest lines are told; `-o json` tells all."""


async def time_limits(ledger: Ledger, holders: Blockers) -> dict[str, int]:
    """Until when each named run runs at the latest, by its job's time limit; runs without one are left out."""
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
    said = [wrapped(answer.sentence())]
    if answer.position:
        rest = f"in line for pool {answer.pool}"
        said.append(wrapped(f"Place {answer.position} of {answer.in_line} {rest}, queue {answer.job.queue}."))
    said += [wrapped(text) for text in answer.said]
    said += [wrapped(f"Also {reason.sentence()}") for reason in answer.others]
    lines = [line for part in said for line in part]
    holders = list(_holder_lines(answer.holders, until, now_ms))
    if holders:
        lines += ["", "Held by others:", *holders]
    if answer.changes:
        lines += ["", "Each of these alone would start it now (tried, not guessed):"]
        lines += [line for change in answer.changes for line in _item(change.said())]
    elif answer.tried > 1:
        lines += ["", f"None of {answer.tried} single changes that were tried would start it now."]
    return lines


def story_lines(lines: list[StoryLine]) -> Iterator[str]:
    """The newest lines of the story, oldest first."""
    if len(lines) > STORY_LINES:
        yield f"({len(lines) - STORY_LINES} earlier lines; `-o json` tells all)"
    for line in lines[-STORY_LINES:]:
        first, *more = wrap(line.said(), COLUMNS, subsequent_indent=" " * 24, break_on_hyphens=False) or [""]
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
        "notes": list(answer.said),
        "holders": [_holder(holder, until) for holder in answer.holders.named],
        "other_holders": [asdict(others) for others in answer.holders.others],
        "changes": [asdict(change) for change in answer.changes],
        "tried": answer.tried,
        "story": story,
    }


def _holder(holder: Holder, until: Mapping[str, int]) -> dict[str, Any]:
    value = asdict(holder) | {"until_ts": holder.until_ts or until.get(holder.run_id, 0)}
    return {name: part for name, part in value.items() if name not in ("taken_n", "fact_index")}


def _holder_lines(holders: Blockers, until: Mapping[str, int], now_ms: int) -> Iterator[str]:
    for holder in holders.named:
        ends = holder.until_ts or until.get(holder.run_id, 0)
        since = f", for {said_age(now_ms - holder.since_ts)}" if holder.since_ts else ""
        left = f", {said_age(ends - now_ms)} more at most" if ends else ""
        yield from _item(f"{holder.said()}{since}{left}")
    for others in holders.others:
        yield from _item(others.said())


def wrapped(text: str) -> list[str]:
    """Lines of a paragraph, of at most 80 columns."""
    return wrap(text, COLUMNS, subsequent_indent="  ", break_on_hyphens=False)


def _item(text: str) -> list[str]:
    return wrap(text, COLUMNS, initial_indent="  - ", subsequent_indent="    ", break_on_hyphens=False)
