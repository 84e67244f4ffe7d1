"""A month as one page of HTML to be sent on: tables and a picture, without scripts and without what is elsewhere."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from html import escape

from tessera.client.ledger.showback.month import Monthly, MonthSums, gpu_hours, money_text
from tessera_schemas.work.budgets import MICROS, day_text, month_end, month_text
from tessera_schemas.work.money import amount_text

ROWS_MAX, SHOWN_MAX = 20, 7
COLORS = ("#2563a8", "#d97706", "#3f8f4f", "#a8328a", "#6b5bd2", "#b3402f", "#2b8c93", "#9aa3ad")
"""Of the tenants that used the most, and of all others."""
WIDTH, HEIGHT, LEFT, DAY_MS = 900, 220, 60, 86_400_000
STYLE = """
body{font:15px/1.5 system-ui,sans-serif;color:#1c2430;max-width:60rem;margin:2rem auto;padding:0 1rem}
h1{font-size:1.6rem;margin-bottom:0}h2{font-size:1.15rem;margin:2rem 0 .4rem}p.note{color:#5a6572;margin:.2rem 0}
table{border-collapse:collapse;width:100%}th,td{padding:.3rem .6rem;border-bottom:1px solid #dde2e8;text-align:right}
th:first-child,td:first-child{text-align:left;overflow-wrap:anywhere}th{font-weight:600;color:#5a6572}
.sums{display:flex;flex-wrap:wrap;gap:1rem;margin:1rem 0}.sums div{background:#f3f5f8;padding:.6rem 1rem;min-width:8rem}
.sums b{display:block;font-size:1.25rem}.over{color:#b3402f;font-weight:600}svg{width:100%;height:auto}
.key span{display:inline-block;margin-right:1rem}
.key i{display:inline-block;width:.8rem;height:.8rem;margin-right:.3rem}
"""


def showback_page(found: Monthly, shard: str) -> str:
    """The page; all names are escaped."""
    title = f"GPU use of {month_text(found.start_ts)}, cluster {shard}"
    return "".join(
        (
            f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title>',
            f"<style>{STYLE}</style>",
            f"<h1>{escape(title)}</h1>",
            *_notes(found),
            *_sums(found),
            "<h2>GPU-hours by day</h2>",
            *_picture(found),
            *_budgets(found),
            *(_table(found, kind, f"By {kind}", str) for kind in ("tenant", "queue", "user", *_projects(found))),
            _table(found, "job", "Biggest jobs", lambda job: f"{found.names.get(job) or '-'} {job}"),
            "</html>\n",
        )
    )


def _notes(found: Monthly) -> Iterator[str]:
    whole = found.upto_ts >= month_end(found.start_ts)
    upto = "" if whole else f" The month goes on: this is until {day_text(found.upto_ts)}."
    yield f'<p class="note">Times are UTC. GPU-hours are those that runs held, from allocation to release.{upto}</p>'
    if found.currency:
        yield f'<p class="note">Cost in {escape(found.currency)}, by the price of each hour.</p>'


def _sums(found: Monthly) -> Iterator[str]:
    now = found.now
    shown = [("GPU-hours used", gpu_hours(now.used)), ("Of the cluster", _share(now.used, now.capacity))]
    shown += [("Free", gpu_hours(now.free)), ("Out of service", gpu_hours(now.out))]
    if found.currency:
        shown.append((f"Cost, {found.currency}", money_text(now.cost["tenant"].total())))
    shown.append(("Month before", gpu_hours(found.before.used) if found.before.capacity else "no data"))
    yield '<div class="sums">'
    yield from (f"<div>{escape(title)}<b>{escape(text)}</b></div>" for title, text in shown)
    yield "</div>"


def _share(part: int, whole: int) -> str:
    tenths = part * 1000 // whole if whole else 0
    return f"{tenths // 10}.{tenths % 10} %"


def _change(now: int, before: int) -> str:
    if not before:
        return "new" if now else ""
    percent = (now - before) * 100 // before
    return f"{'+' if percent > 0 else ''}{percent} %"


def _projects(found: Monthly) -> Iterator[str]:
    # Where no job names any, the table would be that of the tenants.
    if any(not name.endswith("/-") for name in found.now.held["project"]):
        yield "project"


def _table(found: Monthly, kind: str, title: str, named: Callable[[str], str]) -> str:
    """The rows with the most, and one for all others; a job has no month before to be held against."""
    held, cost, before = found.now.held[kind], found.now.cost[kind], found.before.held[kind]
    names = sorted(held, key=lambda name: (-held[name], name))
    shown = [(named(name), held[name], cost[name], before[name]) for name in names[:ROWS_MAX]]
    rest = names[ROWS_MAX:]
    if rest:
        a, c, b = (sum(each[name] for name in rest) for each in (held, cost, before))
        shown.append((f"{len(rest)} others", a, c, b))
    compares = kind != "job" and found.before.capacity > 0
    titles = [kind, "GPU-hours", "of the cluster", *([found.currency] if found.currency else [])]
    titles += ["month before", "change"] if compares else []
    rows = [
        [name, gpu_hours(a), _share(a, found.now.capacity), *([money_text(c)] if found.currency else [])]
        + ([gpu_hours(b), _change(a, b)] if compares else [])
        for name, a, c, b in shown
    ]
    return f"<h2>{escape(title)}</h2>{_rows(titles, rows)}"


def _rows(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(title)}</th>" for title in titles)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>"


def _budgets(found: Monthly) -> Iterator[str]:
    if not found.budgets:
        return
    yield "<h2>Budgets</h2><table><tr><th>budget</th><th>spent</th><th>of</th><th>granted</th><th>percent</th></tr>"
    for each in found.budgets:
        amounts = (micros // 10**4 * 10**4 for micros in (each.spent_micros, each.limit_micros))
        spent, limit = (amount_text(amount, each.unit) for amount in amounts)
        percent, granted = each.spent_micros * 100 // each.limit_micros, f"{each.granted_micros // MICROS:,}"
        over = ' class="over"' if percent >= 100 else ""
        cells = "".join(f"<td>{escape(text)}</td>" for text in (each.name, spent, limit, granted))
        yield f"<tr>{cells}<td{over}>{percent} %</td></tr>"
    yield "</table>"


def _picture(found: Monthly) -> Iterator[str]:
    """Columns by day, the tenants that used the most from below; the line at the top is the highest day."""
    most = sorted(found.now.held["tenant"].items(), key=lambda item: (-item[1], item[0]))
    names = [name for name, _ in most[:SHOWN_MAX]]
    days = [day_text(ts) for ts in range(found.start_ts, month_end(found.start_ts), DAY_MS)]
    columns = [_column(found.now, day, names) for day in days]
    top = max(map(sum, columns), default=0) or 1
    step = (WIDTH - LEFT) // len(days)
    yield f'<svg viewBox="0 0 {WIDTH} {HEIGHT + 30}" role="img" aria-label="GPU-hours by day and tenant">'
    yield f'<line x1="{LEFT}" x2="{WIDTH}" y1="10" y2="10" stroke="#dde2e8"/>'
    yield f'<text x="{LEFT - 6}" y="14" font-size="12" text-anchor="end">{gpu_hours(top)}</text>'
    for at, (day, column) in enumerate(zip(days, columns, strict=True)):
        x, below = LEFT + at * step, 0
        for color, amount in zip(COLORS, column, strict=False):
            height, y = amount * (HEIGHT - 10) // top, HEIGHT - (below + amount) * (HEIGHT - 10) // top
            below += amount
            if height:
                yield f'<rect x="{x}" y="{y}" width="{step - 3}" height="{height}" fill="{color}"/>'
        if at % 5 == 0 or at + 1 == len(days):
            middle = x + (step - 3) // 2
            yield f'<text x="{middle}" y="{HEIGHT + 18}" font-size="12" text-anchor="middle">{int(day[8:])}</text>'
    yield f'<line x1="{LEFT}" x2="{WIDTH}" y1="{HEIGHT}" y2="{HEIGHT}" stroke="#5a6572"/></svg>'
    keys = [*names, *(["others"] if len(most) > SHOWN_MAX else [])]
    colored = zip(COLORS, keys, strict=False)
    shown = (f'<span><i style="background:{color}"></i>{escape(name)}</span>' for color, name in colored)
    yield f'<p class="key">{"".join(shown)}</p>'


def _column(sums: MonthSums, day: str, names: Sequence[str]) -> list[int]:
    """Amounts of one day: of each of these tenants, and of all others together."""
    of_day = {tenant: amount for (on, tenant), amount in sums.days.items() if on == day}
    return [*(of_day.pop(name, 0) for name in names), sum(of_day.values())]
