"""Log of a simulated program, made from its pod alone: nothing is stored, and each reading gives the same lines."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import count, takewhile

from tessera_local.cluster.api import answers
from tessera_local.cluster.api.values import rfc3339
from tessera_local.cluster.machines.behaviour import KILLED, TERMINATED, Behaviour, behaviour_of
from tessera_schemas.base import Json
from tessera_schemas.cluster.labels import run_and_rank

LINES_MAX = 100
"""Lines of progress, however long the program runs."""


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line and when it was written, in milliseconds since the Unix epoch."""

    at_ms: int
    text: str

    def to_bytes(self) -> bytes:
        """Line as the program writes it, with its time and a line end."""
        return f"{rfc3339(self.at_ms)} {self.text}\n".encode()


@dataclass(frozen=True, slots=True)
class Log:
    """Lines written so far, oldest first; `is_whole` once no further line can come."""

    lines: tuple[LogLine, ...]
    is_whole: bool

    def newest(self, tail_lines: int, since_ms: int) -> tuple[LogLine, ...]:
        """The last `tail_lines` lines (0: all) of those written at `since_ms` or later."""
        recent = tuple(line for line in self.lines if line.at_ms >= since_ms)
        return recent[-tail_lines:] if tail_lines else recent


def log_of(pod: Json, now_ms: int) -> Log:
    """Raises ApiError 400 as a kubelet does before the container has started."""
    name = pod["spec"]["containers"][0]["name"]
    states = {status["name"]: status["state"] for status in (pod.get("status") or {}).get("containerStatuses", ())}
    state = states.get(name, {})
    ended = state.get("terminated")
    started = ended or state.get("running")
    if started is None or not started["startedAt"]:
        where = f'container "{name}" in pod "{pod["metadata"]["name"]}"'
        raise answers.bad_request(f"{where} is waiting to start: ContainerCreating")
    start_ms = _milliseconds(started["startedAt"])
    until_ms = _milliseconds(ended["finishedAt"] if ended else rfc3339(now_ms))
    behaviour = behaviour_of(pod)
    _, rank = run_and_rank(pod)
    begin = f"simulated program, rank {rank or 0}: {behaviour.run_ms / 1000:g} s of work"
    if behaviour.done_ms:
        begin += f", {behaviour.done_ms / 1000:g} s done before by an earlier attempt"
    middle = sorted(_middle(behaviour, start_ms, until_ms), key=lambda line: (line.at_ms, line.text))
    end = [LogLine(until_ms, text) for text in _end(int(ended["exitCode"]))] if ended else []
    return Log((LogLine(start_ms, begin), *middle, *end), ended is not None)


def _middle(behaviour: Behaviour, start_ms: int, until_ms: int) -> Iterator[LogLine]:
    """Progress every second, or less often for long work; and every checkpoint."""
    whole = behaviour.run_ms + behaviour.done_ms
    step_ms = max(1000, -(-behaviour.run_ms // LINES_MAX))
    for at_ms in takewhile(lambda ms: ms < until_ms, count(start_ms + step_ms, step_ms)):
        done = behaviour.done_ms + at_ms - start_ms
        yield LogLine(at_ms, f"{done / 1000:g} of {whole / 1000:g} s done")
    save_ms = max(behaviour.save_ms, step_ms) if behaviour.save_ms else 0
    for at_ms in takewhile(lambda ms: ms < until_ms, count(start_ms + save_ms, save_ms)) if save_ms else ():
        yield LogLine(at_ms, f"checkpoint saved to {behaviour.path_after(at_ms - start_ms)}")


def _end(exit_code: int) -> Iterator[str]:
    if exit_code in (TERMINATED, KILLED):
        yield "SIGTERM received" if exit_code == TERMINATED else "killed: its grace was over"
    yield f"exit code {exit_code}"


def _milliseconds(date: str) -> int:
    return int(datetime.fromisoformat(date).timestamp() * 1000)
