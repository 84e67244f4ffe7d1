"""
Read a command strictly: one value of the contract, or every reason why it is not one. Never raises for bad input.

Read twice on purpose: Python's reader sees what pydantic's forgives (a key that appears twice, NaN), pydantic's sees
the rest and makes the command; together they cost less than checking in between.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from tessera_schemas.base import Json, Strict
from tessera_schemas.commands import (
    AdoptJob,
    AnswerMove,
    ApplyConfig,
    CancelJob,
    DrainNode,
    EndReservation,
    GrantBudget,
    HoldJob,
    MoveJob,
    ReleaseJob,
    ReportCheckpoint,
    ReportHealth,
    RequeueJob,
    ReserveNodes,
    ResizePods,
    RollService,
    ScaleService,
    SetPriority,
    ShiftRoles,
    SubmitJob,
    SubmitTemplate,
    TellDataset,
    UpdateJob,
)
from tessera_schemas.reasons import Code, PublicReason, Reason
from tessera_schemas.subjects import SUBMIT_BYTES_MAX
from tessera_schemas.work.dangerous import dangerous_below, is_dangerous, with_grant

REASONS_MAX = 64
FIELD_CHARACTERS = 300
DETAIL_CHARACTERS = 200
PAYLOADS = ("spec.", "body.")  # `roles[0].name` reads better than `spec.roles[0].name`


CONTROL: dict[str, type[Strict]] = {
    "cancel_job": CancelJob,
    "hold_job": HoldJob,
    "release_job": ReleaseJob,
    "set_priority": SetPriority,
    "move_job": MoveJob,
    "update_job": UpdateJob,
    "requeue_job": RequeueJob,
    "scale_service": ScaleService,
    "roll_service": RollService,
    "shift_roles": ShiftRoles,
    "resize_pods": ResizePods,
}
TENANT_KINDS: dict[str, type[Strict]] = {
    "submit_job": SubmitJob,
    "submit_template": SubmitTemplate,
    "report_checkpoint": ReportCheckpoint,
    "answer_move": AnswerMove,
    "tell_dataset": TellDataset,
    **CONTROL,
}
CLUSTER_KINDS: dict[str, type[Strict]] = {"adopt_job": AdoptJob, "cancel_job": CancelJob}
OPERATOR_KINDS: dict[str, type[Strict]] = {
    "apply_config": ApplyConfig,
    "drain_node": DrainNode,
    "report_health": ReportHealth,
    "grant_budget": GrantBudget,
    "reserve_nodes": ReserveNodes,
    "end_reservation": EndReservation,
    **CONTROL,
}
NOT_FOR_TENANTS: Mapping[str, str] = {
    "apply_config": "the configuration is an operator's to change",
    "drain_node": "nodes are an operator's to drain",
    "report_health": "the health of nodes is told by operators and their agents",
    "grant_budget": "budgets are an operator's to raise",
    "reserve_nodes": "nodes are an operator's to reserve",
    "end_reservation": "reservations are an operator's to end",
    "adopt_job": "only what the binder finds in Kubernetes is adopted; submit_job submits",
}
NOT_FOR_OPERATORS: Mapping[str, str] = {
    "submit_job": "a job is submitted as its tenant",
    "submit_template": "a job is submitted as its tenant",
    "report_checkpoint": "the job's own tenant knows what its program saved",
    "answer_move": "the job's own tenant says whether its run moves",
    "tell_dataset": "the tenant of a data set says where it is",
}
NOT_FOR_AGENTS: Mapping[str, str] = dict.fromkeys(
    {**TENANT_KINDS, **OPERATOR_KINDS}.keys() - {"report_health"}, "agents report the health of nodes and order nothing"
)
NOT_FOR_RESERVATIONS: Mapping[str, str] = dict.fromkeys(
    {**TENANT_KINDS, **OPERATOR_KINDS}.keys() - {"reserve_nodes", "end_reservation"},
    "only reservations of nodes are sent there",
)
NOT_FOR_CLUSTERS: Mapping[str, str] = {"submit_job": "what was found in Kubernetes is adopted, with its owner"}


@dataclass(frozen=True, slots=True)
class Parsed:
    """`command` is None exactly when there are reasons; `raw` is what could be read, for naming things."""

    command: Strict | None = None
    reasons: tuple[Reason, ...] = ()
    raw: Json = field(default_factory=dict)


class _Repeated(ValueError):
    """A key appears twice in one object."""


def read_tenant_command(data: bytes) -> Parsed:
    """The command of a tenant, or every reason why it is not one."""
    return parse(data, TENANT_KINDS, NOT_FOR_TENANTS)


def read_cluster_command(data: bytes) -> Parsed:
    """The command of a binder, or every reason why it is not one."""
    return parse(data, CLUSTER_KINDS, NOT_FOR_CLUSTERS)


def read_operator_command(data: bytes) -> Parsed:
    """The command of an operator, or every reason why it is not one."""
    return parse(data, OPERATOR_KINDS, NOT_FOR_OPERATORS)


def read_health_report(data: bytes) -> Parsed:
    """The report of a node's health, or every reason why it is not one."""
    return parse(data, {"report_health": ReportHealth}, NOT_FOR_AGENTS)


def read_reservation(data: bytes) -> Parsed:
    """The order to reserve nodes or to end a reservation, or every reason why it is not one."""
    kinds = {kind: OPERATOR_KINDS[kind] for kind in ("reserve_nodes", "end_reservation")}
    return parse(data, kinds, NOT_FOR_RESERVATIONS)


def parse(data: bytes, kinds: Mapping[str, type[Strict]], elsewhere: Mapping[str, str]) -> Parsed:
    """
    The command in `data`, one of `kinds`.

    `elsewhere` names the kinds that exist but do not belong here, with what to say about them.
    """
    if len(data) > SUBMIT_BYTES_MAX:
        return Parsed(reasons=(too_large(len(data)),))
    raw = _read(data)
    if isinstance(raw, Reason):
        return Parsed(reasons=(raw,))
    if not isinstance(raw, dict):
        return _refused(Code.NOT_JSON, detail="the body must be a JSON object")
    kind = raw.get("kind")
    model = kinds.get(kind) if isinstance(kind, str) else None
    if model is None:
        return Parsed(reasons=_no_kind(raw, elsewhere), raw=raw)
    try:
        command = model.model_validate_json(data, strict=True)
    except ValidationError as error:
        return Parsed(reasons=bounded(_reasons(error, raw)), raw=raw)
    if type(raw["v"]) is not int:  # true and 1.0 equal 1
        return Parsed(reasons=(refusal(Code.UNKNOWN_VERSION, "v"),), raw=raw)
    return Parsed(command, raw=raw)


def bounded(reasons: list[Reason]) -> tuple[Reason, ...]:
    """The first 64 reasons; where there are more, the last one says how many."""
    if len(reasons) <= REASONS_MAX:
        return tuple(reasons)
    left = len(reasons) - REASONS_MAX + 1
    more = Reason(code=Code.INVALID_FIELD, detail="further fields are wrong, too", numbers={"further": left})
    return (*reasons[: REASONS_MAX - 1], more)


def refusal(code: Code, at: str = "", detail: str = "", numbers: dict[str, int] | None = None) -> Reason:
    """A reason whose texts may come from the sender: cut, and without what cannot be written down again."""
    return Reason(
        code=code,
        field=_plain(at, FIELD_CHARACTERS),
        numbers=numbers or {},
        detail=_plain(detail, DETAIL_CHARACTERS),
    )


def besides(own: Iterable[PublicReason], found: Iterable[PublicReason]) -> tuple[PublicReason, ...]:
    """The sender's own reasons, then those found by others about other fields, and about the whole for other causes."""
    told = tuple(own)
    known = {reason.field or reason.code for reason in told}
    return (*told, *(reason for reason in found if (reason.field or reason.code) not in known))


def too_large(size: int) -> Reason:
    """Why a command of so many bytes is not even read."""
    numbers = {"bytes": size, "bytes_max": SUBMIT_BYTES_MAX}
    return refusal(Code.TOO_LARGE, "", "scripts and data belong in the image or on a volume", numbers)


def _plain(text: str, characters: int) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in text[:characters])


def _refused(code: Code, detail: str = "") -> Parsed:
    return Parsed(reasons=(refusal(code, "", detail),))


def _read(data: bytes) -> Any:
    try:
        return _DECODER.decode(data.decode())
    except _Repeated as error:
        return refusal(Code.DUPLICATE_KEY, str(error))
    except RecursionError:
        return refusal(Code.NOT_JSON, detail="nested too deeply")
    except UnicodeDecodeError:
        return refusal(Code.NOT_JSON, detail="not UTF-8")
    except ValueError as error:  # malformed, NaN, Infinity, or a number of thousands of digits
        return refusal(Code.NOT_JSON, detail=str(error))


def _without_repeats(pairs: list[tuple[str, Any]]) -> Json:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        raise _Repeated(next(key for key, _ in pairs if key in seen or seen.add(key)))  # type: ignore[func-returns-value]
    return found


def _not_a_number(word: str) -> None:
    raise ValueError(f"{word} is not JSON")


_DECODER = json.JSONDecoder(object_pairs_hook=_without_repeats, parse_constant=_not_a_number)


def _no_kind(raw: Json, elsewhere: Mapping[str, str]) -> tuple[Reason, ...]:
    if "kind" not in raw:
        return (refusal(Code.MISSING_FIELD, "kind"),)
    kind = raw["kind"]
    if isinstance(kind, str) and kind in elsewhere:
        return (refusal(Code.INVALID_FIELD, "kind", elsewhere[kind]),)
    return (refusal(Code.UNKNOWN_VERSION, "kind", f"{kind!r} is no command"[:DETAIL_CHARACTERS]),)


def _reasons(error: ValidationError, raw: Json) -> list[Reason]:
    """Every mistake that pydantic found, with its path as the sender wrote it."""
    found: list[Reason] = []
    for mistake in error.errors(include_url=False, include_context=False, include_input=False):
        loc, what = mistake["loc"], mistake["type"]
        at = _path(loc)
        if what == "too_short" and _value_at(raw, loc):
            continue  # it is short only of items that are wrong, which are reported themselves
        if what == "extra_forbidden":
            found += _unknown(at, loc, raw)
        elif what == "missing":
            found.append(refusal(Code.MISSING_FIELD, at))
        elif what == "json_invalid":
            found.append(refusal(Code.NOT_JSON, detail=mistake["msg"]))
        elif loc == ("v",):
            found.append(refusal(Code.UNKNOWN_VERSION, at, mistake["msg"]))
        elif what == "literal_error" and _names_danger(_value_at(raw, loc)):
            found.append(refusal(Code.FORBIDDEN_FIELD, at))
        else:
            found.append(refusal(Code.INVALID_FIELD, at, mistake["msg"].removeprefix("Value error, ")))
        if len(found) > 4 * REASONS_MAX:
            break  # nobody reads the thousandth mistake
    return found


def _unknown(at: str, loc: tuple[int | str, ...], raw: Json) -> list[Reason]:
    if is_dangerous(str(loc[-1])):
        return [refusal(Code.FORBIDDEN_FIELD, at, with_grant(str(loc[-1])))]
    inside = [refusal(Code.FORBIDDEN_FIELD, path) for path in dangerous_below(_value_at(raw, loc), at)]
    return [refusal(Code.UNKNOWN_FIELD, at), *inside[:REASONS_MAX]]


def _names_danger(value: Any) -> bool:
    return isinstance(value, str) and is_dangerous(value)


def _value_at(raw: Any, loc: tuple[int | str, ...]) -> Any:
    for step in loc:
        try:
            raw = raw[step]
        except (KeyError, IndexError, TypeError):
            return None
    return raw


def _path(loc: tuple[int | str, ...]) -> str:
    """`("spec", "roles", 0, "name")` becomes `roles[0].name`; a bad key of a map is named by itself."""
    path = ""
    for step in loc:
        if step != "[key]":
            path += f"[{step}]" if isinstance(step, int) else f".{step}"
    path = path.removeprefix(".")
    for prefix in PAYLOADS:
        path = path.removeprefix(prefix)
    return path
