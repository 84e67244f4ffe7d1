"""What is declared once has everything that follows from it: a class without its function is named here."""

from pathlib import Path
from typing import get_args

from tessera.client.cli import COMMANDS, ImportedWhenCalled
from tessera.domain.folding.fold import APPLY
from tessera.engine.scoring.policies import POLICIES
from tessera.scheduler.decide import JUDGE
from tessera_schemas.config import Policy
from tessera_schemas.facts import FACTS
from tessera_schemas.ledger import RECORDS

COMMANDS_PAGE = (Path(__file__).parents[3] / "docs" / "commands.md").read_text()


def names(classes: object) -> set[str]:
    return {each.__name__ for each in classes}  # type: ignore[attr-defined]


def test_every_fact_is_judged() -> None:
    assert names(set(FACTS) - set(JUDGE)) == set()


def test_every_record_is_applied() -> None:
    assert names(set(RECORDS) - set(APPLY)) == set()


def test_every_command_stands_on_the_page_of_commands() -> None:
    told = {*COMMANDS} - {"run", "init", "up", "demo", "lab"}  # those of the README, and research
    words = {f"{name} {sub}" for name in told for sub in getattr(ImportedWhenCalled()[name], "commands", ())}
    assert {each for each in told | words if f"`tessera {each}" not in COMMANDS_PAGE} == set()


def test_every_scoring_policy_that_a_configuration_may_name_is_there() -> None:
    assert {*POLICIES} == {*get_args(Policy.model_fields["placement"].annotation)}
