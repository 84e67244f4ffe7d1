"""What an order would do is said before it is sent; on a terminal it is asked about, unless --yes."""

from typing import Any

import pytest

from tessera.client.outcomes import Exit, Failure
from tessera.client.sending import consent
from tessera.kernel.errors import Transient
from tessera_schemas.commands import DrainNode
from tests.unit.client.listed import views_over

ORDER = DrainNode(kind="drain_node", v=1, node="node-a", evict=True)
EVICTS = "stops pods of 1 job"


class Told:
    """Answers for a gateway: what the order would do, or that it is away."""

    def __init__(self, runs: int = 1, away: Exception | None = None) -> None:
        self.runs, self.away, self.asked = runs, away, list[Any]()

    async def post(self, path: str, body: Any, key: str = "") -> tuple[int, Any]:
        self.asked.append((path, body))
        if self.away is not None:
            raise self.away
        said = {"sentences": [EVICTS] if self.runs else [], "runs": self.runs, "gpu_milli": 0, "lost_gpu_seconds": 0}
        return 200, {"as_of": 1, "at_least": False, "stopped": [], "promises": [], **said}


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A terminal on which every question is answered with no; the questions."""
    asked: list[str] = []
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr(consent.typer, "confirm", lambda text, **_: asked.append(text))
    return asked


async def ask(monkeypatch: pytest.MonkeyPatch, told: Told, yes: bool = False) -> None:
    views = views_over()
    views._api = told  # type: ignore[assignment]
    monkeypatch.setattr(consent, "views_of", lambda *_: views)
    await consent.ask_first(None, "operator", ORDER, yes)  # type: ignore[arg-type]


async def test_what_evicts_is_said_and_asked_about_and_no_ends_it(
    monkeypatch: pytest.MonkeyPatch, terminal: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    told = Told()
    with pytest.raises(Failure, match="nothing was sent") as failure:
        await ask(monkeypatch, told)
    assert failure.value.code is Exit.FAILED
    assert told.asked == [("/v1/consequences", {"command": ORDER.model_dump(mode="json")})]
    assert (terminal, capsys.readouterr().err) == (["Go on?"], f"{EVICTS}\n")


async def test_yes_says_it_and_goes_on_and_what_harms_nobody_is_not_asked_about(
    monkeypatch: pytest.MonkeyPatch, terminal: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    await ask(monkeypatch, Told(), yes=True)
    assert EVICTS in capsys.readouterr().err
    await ask(monkeypatch, Told(runs=0))
    assert (terminal, capsys.readouterr().err) == ([], "")


async def test_without_a_terminal_it_is_said_and_goes_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: False, raising=False)
    await ask(monkeypatch, Told())
    assert EVICTS in capsys.readouterr().err


@pytest.mark.parametrize("away", [Transient("no gateway"), Failure(Exit.NOT_FOUND, "no such path")])
async def test_an_order_goes_on_where_no_gateway_knows_what_it_would_do(
    monkeypatch: pytest.MonkeyPatch, terminal: list[str], capsys: pytest.CaptureFixture[str], away: Exception
) -> None:
    await ask(monkeypatch, Told(away=away))
    assert "what this would do is not known" in capsys.readouterr().err
    assert terminal == []
