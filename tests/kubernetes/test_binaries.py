"""Where the programs of the control plane are looked for, and what is said when one can be neither found nor built."""

import os
import threading
from pathlib import Path

import pytest

from tests.kubernetes import binaries
from tests.kubernetes.binaries import Unavailable, find

GO_THAT_BUILDS = """#!/bin/sh
while [ "$1" != "-o" ]; do shift; done
echo built >> {log}
sleep 0.2
printf '#!/bin/sh\\n' > "$2" && chmod +x "$2"
"""
GO_WITHOUT_MODULES = "#!/bin/sh\necho 'go: sigs.k8s.io/kwok@v0.8.0: not found' >&2\nexit 1\n"


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine on which nothing is installed; programs put into its `bin` are on PATH."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/bin:/usr/bin")
    monkeypatch.setenv("TESSERA_TOOLS", str(tmp_path / "tools"))
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    monkeypatch.setattr(binaries.shutil, "which", lambda name: which(tmp_path / "bin" / name))
    return tmp_path


def which(path: Path) -> str | None:
    return str(path) if os.access(path, os.X_OK) else None


def program(path: Path, text: str = "#!/bin/sh\n") -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def quiet(_: str) -> None: ...


def test_the_folder_of_envtest_comes_before_path_and_path_before_the_cache(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cached = program(machine / "tools" / "kwok")
    assert find("kwok", quiet) == cached
    on_path = program(machine / "bin" / "kwok")
    assert find("kwok", quiet) == on_path
    asset = program(machine / "assets" / "kwok")
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(machine / "assets"))
    assert find("kwok", quiet) == asset


def test_a_program_that_two_need_at_the_same_time_is_built_once(machine: Path) -> None:
    log = machine / "log"
    program(machine / "bin" / "go", GO_THAT_BUILDS.format(log=log))
    said: list[str] = []
    both = [threading.Thread(target=find, args=("etcd", said.append)) for _ in range(2)]
    for one in both:
        one.start()
    for one in both:
        one.join()
    assert log.read_text() == "built\n"
    assert [line.split(" ")[:2] for line in said] == [["building", "etcd"], ["built", "etcd"]]
    assert sorted(path.name for path in (machine / "tools").iterdir()) == ["etcd", "lock"]


def test_without_go_it_is_said_which_program_is_missing_and_where_it_was_looked_for(machine: Path) -> None:
    with pytest.raises(
        Unavailable, match="etcd: not in KUBEBUILDER_ASSETS, on PATH or in the cache, and there is no go"
    ):
        find("etcd", quiet)


def test_what_takes_long_to_build_is_built_by_name_alone(machine: Path) -> None:
    program(machine / "bin" / "go", GO_THAT_BUILDS.format(log=machine / "log"))
    with pytest.raises(Unavailable, match=r"not here, .* python -m tests.kubernetes.binaries keda-operator"):
        find("keda-operator", quiet)
    assert binaries.main(["keda-operator"]) == 0
    assert find("keda-operator", quiet) == machine / "tools" / "keda-operator"


def test_a_module_that_cannot_be_had_is_named_and_leaves_nothing_behind(machine: Path) -> None:
    program(machine / "bin" / "go", GO_WITHOUT_MODULES)
    with pytest.raises(Unavailable, match=r"kwok: the module sigs.k8s.io/kwok/cmd/kwok .*: not found"):
        find("kwok", quiet)
    assert [path.name for path in (machine / "tools").iterdir()] == ["lock"]


def test_other_pins_are_another_folder_for_the_programs_of_that_module_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TESSERA_TOOLS", raising=False)
    monkeypatch.setattr(binaries, "MODULES", tmp_path)
    for module in ("etcd", "kwok"):
        (tmp_path / module).mkdir()
        (tmp_path / module / "go.mod").write_text("module one\n")
    before = [binaries.cache_folder(name) for name in ("etcd", "kwok")]
    (tmp_path / "etcd" / "go.mod").write_text("module other\n")
    after = [binaries.cache_folder(name) for name in ("etcd", "kwok")]
    assert [old == new for old, new in zip(before, after, strict=True)] == [False, True]
