"""What is done with bad input, and what must come of it: a typed refusal or a good value, never anything else."""

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from tessera.admission.decide import outcome as decide
from tessera.admission.decide.outcome import Origin
from tessera.admission.decide.policy import AdmissionPolicy
from tessera.kernel.errors import KernelError
from tessera.kernel.ledger.shard import decode_entry
from tessera.kernel.ports import Message
from tessera_schemas.documents.registry import registered
from tessera_schemas.facts import FACT_MESSAGE, FactMessage, JobRefused
from tessera_schemas.text import reading
from tests.bad_input.corpora import NAUGHTY
from tests.bad_input.generated import flipped, mutated
from tests.builders import config_body
from tests.contract.golden_files import golden
from tests.unit.admission.admission_world import World, node

ANSWER_BYTES_MAX = 64 * 1024
READERS: dict[str, Callable[[bytes], reading.Parsed]] = {
    **dict.fromkeys(reading.TENANT_KINDS, reading.read_tenant_command),
    "adopt_job": reading.read_cluster_command,
    "apply_config": reading.read_operator_command,
    "drain_node": reading.read_operator_command,
}


@dataclass
class Tally:
    """How many cases led to what; `slowest` in seconds of CPU, `wrong` are sentences."""

    cases: int = 0
    good: int = 0
    codes: Counter[str] = field(default_factory=Counter)
    slowest: float = 0.0
    wrong: list[str] = field(default_factory=list)


def good_command(kind: str) -> dict[str, Any]:
    """A command of this kind with nearly every field, which `good_policy` lets through."""
    command: dict[str, Any] = json.loads(golden(f"command.{kind}.v1").read_bytes())
    return command


async def good_policy() -> AdmissionPolicy:
    """The policy of a shard whose nodes and templates serve every good command."""
    spec = {**good_command("submit_job")["spec"], "time_limit_seconds": "{gpus}"}
    spec["roles"][1]["template"]["args"] = ["--lr={lr}"]
    values = [{"name": "lr", "type": "string"}, {"name": "gpus", "type": "int", "default": 2, "min": 1, "max": 8}]
    left_to_say = ["name", "queue", "priority_class"]
    template = {"name": "tune", "parameters": values, "spec": spec, "overrides": left_to_say}
    labels = {"zone": "west-1", "rack": "r2", "tessera.io/rack": "a", "tessera.io/zone": "z"}
    large = node("node-a", gpu_memory_bytes=80 * 2**30, devices=(("rdma/hca", 8),), labels=labels)
    mig = node("node-b", mig_geometry="80gb", device_profile="mig")
    here = await World.with_policy(config_body(templates=(template,)), [large, mig])
    assert here.policy.known is not None
    return here.policy.known


def try_commands(kind: str, cases: int, random: Random, policy: AdmissionPolicy, tally: Tally) -> None:
    """Generated cases of one command, read and judged as admission does; unspoilt it is good."""
    command = good_command(kind)
    try_command(kind, json.dumps(command).encode(), policy, tally)
    if not tally.good:
        tally.wrong.append(f"{kind}: what is to be spoilt is refused: {dict(tally.codes)}")
    for _ in range(cases):
        try_command(kind, mutated(random, command), policy, tally)


def try_command(kind: str, data: bytes, policy: AdmissionPolicy, tally: Tally) -> None:
    """One case: the outcome's fact and answer must be of the contract, and small."""
    tally.cases += 1
    began = time.process_time()
    try:
        parsed = READERS[kind](data)
        origin = Origin("main", "lab", 1, "", kind == "adopt_job")
        if READERS[kind] is reading.read_operator_command:
            outcome = decide.judge_operator_command(parsed, Origin("main", "operator", 1))
        else:
            outcome = decide.judge_tenant_command(parsed, origin, policy)
        stored = FactMessage(v=1, fact=outcome.fact).to_bytes()
        if FACT_MESSAGE.validate_json(stored).fact != outcome.fact:
            tally.wrong.append(f"{kind}: its fact is another when it is read again: {data[:300]!r}")
        answer = outcome.answer.to_bytes()
    except Exception as error:  # that none is raised is what is tried
        tally.wrong.append(f"{kind}: {type(error).__name__}: {str(error)[:200]} for {data[:300]!r}")
        return
    tally.slowest = max(tally.slowest, time.process_time() - began)
    if isinstance(outcome.fact, JobRefused) or not outcome.answer.accepted:
        reasons = outcome.answer.reasons
        tally.codes.update(reason.code.value for reason in reasons)
        if not reasons or outcome.answer.accepted:
            tally.wrong.append(f"{kind}: refused without a reason: {data[:300]!r}")
    else:
        tally.good += 1
    if len(answer) > ANSWER_BYTES_MAX or (isinstance(outcome.fact, JobRefused) and len(stored) > ANSWER_BYTES_MAX):
        tally.wrong.append(f"{kind}: {len(answer)} bytes of answer, {len(stored)} of fact for {data[:300]!r}")


def naughty_commands(kind: str) -> Iterator[bytes]:
    """The golden command with each naughty string in each place where it has a string, and as each name."""
    text = golden(f"command.{kind}.v1").read_bytes()
    strings = sorted(set(_strings(json.loads(text))))
    for value in strings:
        old = json.dumps(value, ensure_ascii=False).encode()
        for naughty in NAUGHTY:
            yield text.replace(old, json.dumps(naughty).encode())


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield key
            yield from _strings(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _strings(inner)


def try_decoders(flips_per_byte: float, random: Random, tally: Tally) -> None:
    """Each golden file with a byte changed, through the decoder of its type: a value, or a refusal that is one."""
    for entry in registered():
        stored = golden(entry.id).read_bytes()
        for _ in range(max(1, round(len(stored) * flips_per_byte))):
            data = flipped(random, stored)
            tally.cases += 1
            began = time.process_time()
            try:
                entry.stored_in.model_validate_json(data)
                tally.good += 1
            except ValueError:
                tally.codes["refused"] += 1
            except Exception as error:  # any other is what is looked for
                tally.wrong.append(f"{entry.id}: {type(error).__name__}: {str(error)[:200]} for {data[:300]!r}")
            if entry.id.startswith("record."):
                _try_entry(data, tally)
            tally.slowest = max(tally.slowest, time.process_time() - began)


def _try_entry(data: bytes, tally: Tally) -> None:
    """As a follower reads the ledger: it halts for a stated reason, or reads on."""
    try:
        decode_entry(Message("", 1, data))
    except (KernelError, ValueError):
        tally.codes["halted"] += 1
    except Exception as error:
        tally.wrong.append(f"ledger entry: {type(error).__name__}: {str(error)[:200]} for {data[:300]!r}")


def lines(name: str, tally: Tally) -> str:
    """One row of the table."""
    most = ", ".join(f"{code} {number}" for code, number in tally.codes.most_common(4))
    return f"{name:18} {tally.cases:8}  good {tally.good:7}  slowest {tally.slowest * 1000:6.1f} ms  {most}"


def kept(directory: Path, wrong: list[str]) -> None:
    """Write what went wrong where somebody finds it."""
    (directory / "bad-input.txt").write_text("\n".join(wrong) + "\n")
