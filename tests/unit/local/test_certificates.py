"""Without the extra `local` there is no certificate, and the way to one is said."""

import sys
from pathlib import Path

import pytest

from tessera.kernel.errors import StartupError
from tessera_local.kubeconfig import write_certificate


def test_what_is_missing_is_told_with_the_extra_that_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "trustme", None)
    with pytest.raises(StartupError, match=r"tessera-scheduler\[local\]"):
        write_certificate(tmp_path / "certificate.pem")
