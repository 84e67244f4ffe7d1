"""`dlq list` and `dlq show`: the input that could never be handled, and why."""

from typing import Annotated

import typer

from tessera.client.cluster.dead_letters import DeadLetterBox, Letter
from tessera.client.commands.context import Format, ShardOptions, command
from tessera.client.views.rendering import STEERING, Column, Output, show, show_value
from tessera.kernel.clock import SystemClock
from tessera_schemas.text.units import format_age

dlq = typer.Typer(help="Read the dead letters: input that could never be handled.", no_args_is_help=True)


@dlq.command("list")
@command
async def list_letters(
    at: ShardOptions,
    last: Annotated[int, typer.Option(help="Letters to show, the newest", min=1, max=10_000)] = 20,
    output: Format = Output.TABLE,
) -> None:
    """List the newest dead letters, oldest first."""
    async with DeadLetterBox.open(at.find()) as box:
        letters, total = await box.newest(last)
    if output.for_programs:
        show_value(output, {"items": [letter.plain() for letter in letters], "total": total}, None)
    elif not total:
        print("There are no dead letters.")
    else:
        columns = letter_columns(SystemClock().now_ms())
        show(output, columns, letters, None, f"{len(letters)} of {total} dead letters")


@dlq.command("show")
@command
async def show_letter(
    at: ShardOptions,
    seq: Annotated[int, typer.Argument(help="Its number, as `tessera dlq list` says it", min=1)],
    output: Format = Output.TABLE,
) -> None:
    """Show one dead letter in full: where it came from, why it died, its headers and its body."""
    async with DeadLetterBox.open(at.find()) as box:
        letter = await box.letter(seq)
    if output.for_programs:
        show_value(output, letter.plain() | letter.body(), None)
    else:
        print("\n".join(letter_lines(letter, SystemClock().now_ms())))


def letter_columns(now_ms: int) -> list[Column[Letter]]:
    return [
        Column("SEQ", lambda letter: str(letter.seq), right=True),
        Column("AGE", lambda letter: format_age(now_ms - letter.stored_ms), right=True),
        Column("SERVICE", lambda letter: letter.service),
        Column("SUBJECT", lambda letter: letter.subject, shrinks=True),
        Column("DELIVERIES", lambda letter: str(letter.deliveries), right=True, wide=True),
        Column("BYTES", lambda letter: str(letter.bytes_sent), right=True, wide=True),
        Column("SOURCE", lambda letter: f"{letter.source} {letter.source_seq}", wide=True),
        Column("REASON", lambda letter: letter.reason, shrinks=True),
    ]


def letter_lines(letter: Letter, now_ms: int) -> list[str]:
    """One letter for people, its body last."""
    cut = f", of which the first {letter.bytes_stored} are here" if letter.bytes_stored < letter.bytes_sent else ""
    facts = {
        "seq": str(letter.seq),
        "age": format_age(now_ms - letter.stored_ms),
        "service": f"{letter.service}, after {letter.deliveries} deliveries",
        "source": f"{letter.source}, message {letter.source_seq}",
        "subject": letter.subject,
        "reason": letter.reason,
        "bytes": f"{letter.bytes_sent}{cut}",
        **({"message id": letter.message_id} if letter.message_id else {}),
        **{f"header {name}": value for name, value in sorted(letter.headers.items())},
    }
    body = letter.data.decode("utf-8", "backslashreplace").translate(STEERING)
    width = max(map(len, facts))
    return [*(f"{name:<{width}}  {value}" for name, value in facts.items()), "", body]
