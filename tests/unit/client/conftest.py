"""Tables as on a terminal of 80 columns, which tests of texts expect."""

import pytest


@pytest.fixture(autouse=True)
def _columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
