"""A token is shown once, its hash is kept, and only the whole of it lets anybody in."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.gateway.entrance.tokens import TokenFile, add_token, drop_token, read_entries
from tessera.kernel.errors import StartupError


def loaded(path: Path) -> TokenFile:
    tokens = TokenFile(path)
    tokens.load()
    return tokens


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tokens.toml"


def test_a_tenants_token_stands_for_that_tenant_and_an_operators_for_nobody(path: Path) -> None:
    of_lab, of_operator = add_token(path, "lab"), add_token(path, None)
    tokens = loaded(path)
    lab, operator = tokens.caller(of_lab), tokens.caller(of_operator)
    assert lab is not None
    assert operator is not None
    assert (lab.tenant, operator.tenant) == ("lab", None)
    assert (lab.may_see("lab"), lab.may_see("ops"), operator.may_see("ops")) == (True, False, True)


def test_a_token_may_be_bound_to_a_user_and_counts_no_more_once_it_is_bound_to_another(path: Path) -> None:
    tokens, bound = loaded(path), add_token(path, "lab", "ana")
    tokens.load()
    caller = tokens.caller(bound)
    assert caller is not None
    assert (caller.user, tokens.holds(caller)) == ("ana", True)
    path.write_text(path.read_text().replace("'ana'", "'bob'"))
    assert not loaded(path).holds(caller)


def test_a_token_may_be_for_one_thing_only_and_counts_no_more_once_it_is_for_all(path: Path) -> None:
    narrowed = add_token(path, "lab", only="places")
    tokens = loaded(path)
    caller = tokens.caller(narrowed)
    assert caller is not None
    assert (caller.only, tokens.holds(caller)) == ("places", True)
    path.write_text(path.read_text().replace("only = 'places'\n", ""))
    assert not loaded(path).holds(caller)


@pytest.mark.parametrize("owner", ["kind = 'operator'", "kind = 'tenant'\ntenant = 'lab'\nuser = 'ana'"])
def test_no_operators_and_no_users_token_is_for_one_thing_only(path: Path, owner: str) -> None:
    path.write_text(f"['4f1d0c2ab37e']\n{owner}\nonly = 'places'\nsha256 = '{'0' * 64}'\n")
    with pytest.raises(StartupError, match="for one thing only"):
        read_entries(path)


def test_a_token_for_health_is_an_agents_and_speaks_as_one_source(path: Path) -> None:
    named, unnamed = add_token(path, None, only="health", source="rack-agent"), add_token(path, None, only="health")
    tokens = loaded(path)
    rack, other = tokens.caller(named), tokens.caller(unnamed)
    assert rack is not None
    assert other is not None
    assert (rack.tenant, rack.only, rack.source, tokens.holds(rack)) == (None, "health", "rack-agent", True)
    assert other.source == f"agent-{other.token_id}"
    path.write_text(path.read_text().replace("'rack-agent'", "'fabric-agent'"))
    assert not loaded(path).holds(rack)


@pytest.mark.parametrize(
    ("owner", "why"),
    [
        ("kind = 'operator'\nonly = 'health'", "a token for health"),
        ("kind = 'operator'\nsource = 'rack-agent'", "a token for health"),
        ("kind = 'tenant'\ntenant = 'lab'\nonly = 'health'\nsource = 'rack-agent'", "a token for health"),
        ("kind = 'operator'\nonly = 'health'\nsource = 'rack-agent'\nuser = 'ana'", "operators submit nothing"),
        ("kind = 'operator'\nonly = 'health'\nsource = 'dcgm'", "is not a file of tokens"),
        ("kind = 'operator'\nonly = 'health'\nsource = 'operator'", "is not a file of tokens"),
    ],
    ids=["no source", "an operator's with one", "a tenant's", "a user's", "reclamation's own", "the operators' own"],
)
def test_no_other_token_reports_health_and_none_as_what_is_tesseras_own(path: Path, owner: str, why: str) -> None:
    path.write_text(f"['4f1d0c2ab37e']\n{owner}\nsha256 = '{'0' * 64}'\n")
    with pytest.raises(StartupError, match=why):
        read_entries(path)


def test_a_file_that_was_written_before_tokens_had_users_is_read_and_kept(path: Path) -> None:
    path.write_text(f"['4f1d0c2ab37e']\nkind = 'tenant'\ntenant = 'lab'\nsha256 = '{'0' * 64}'\n")
    before = path.read_text()
    drop_token(path, add_token(path, "lab", "ana").split("_")[1])
    assert (read_entries(path)["4f1d0c2ab37e"].user, path.read_text()) == ("", before)


def test_no_operators_token_has_a_user(path: Path) -> None:
    path.write_text(f"['4f1d0c2ab37e']\nkind = 'operator'\nuser = 'ana'\nsha256 = '{'0' * 64}'\n")
    with pytest.raises(StartupError, match="operators submit nothing"):
        read_entries(path)


def test_the_file_holds_no_secret_and_is_its_owners_alone(path: Path) -> None:
    token = add_token(path, "lab")
    secret = token.rpartition("_")[2]
    assert secret not in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600
    assert len(secret) == 64


def test_a_wrong_secret_an_unknown_id_and_a_hash_are_no_tokens(path: Path) -> None:
    token = add_token(path, "lab")
    name, token_id, secret = token.split("_")
    tokens, (entry,) = loaded(path), read_entries(path).values()
    for wrong in (
        "",
        "_",
        "__",
        secret,
        f"{name}_{token_id}_",
        f"{name}_{token_id}_{secret[:-1]}",
        f"{name}_{token_id}_{'0' * 64}",
        f"{name}_{token_id}_{entry.sha256}",
        f"{name}_{'0' * 12}_{secret}",
        f"other_{token_id}_{secret}",
        f"{token} ",
        token.upper(),
    ):
        assert tokens.caller(wrong) is None, wrong


@given(st.text(max_size=200))
def test_no_text_whatever_lets_anybody_in_without_a_file(text: str) -> None:
    assert TokenFile(None).caller(text) is None


@given(st.binary(max_size=100))
def test_bytes_that_no_header_should_hold_are_no_token_either(data: bytes) -> None:
    assert TokenFile(None).caller(f"tessera_x_{data.decode('utf-8', 'surrogateescape')}") is None


def test_a_revoked_token_is_refused_after_the_next_look_and_others_stay(path: Path) -> None:
    first, second = add_token(path, "lab"), add_token(path, "lab")
    tokens = loaded(path)
    caller = tokens.caller(first)
    assert caller is not None
    assert drop_token(path, caller.token_id)
    tokens.load()
    assert tokens.caller(first) is None
    assert not tokens.holds(caller)
    assert tokens.caller(second) is not None
    assert not drop_token(path, caller.token_id)


def test_a_file_that_became_unreadable_leaves_what_was_in_force(path: Path) -> None:
    token = add_token(path, "lab")
    tokens = loaded(path)
    path.write_text("not toml [")
    os.utime(path, ns=(1, 1))
    with pytest.raises(StartupError, match="is not a file of tokens"):
        tokens.load()
    assert tokens.caller(token) is not None


def test_a_file_that_was_taken_away_lets_nobody_in(path: Path) -> None:
    token = add_token(path, "lab")
    tokens = loaded(path)
    path.unlink()
    tokens.load()
    assert tokens.caller(token) is None


@pytest.mark.parametrize(
    "text",
    [
        '[a]\nkind = "tenant"\nsha256 = "' + "0" * 64 + '"',
        '[a]\nkind = "operator"\ntenant = "lab"\nsha256 = "' + "0" * 64 + '"',
        '[a]\nkind = "tenant"\ntenant = "lab"\nsha256 = "short"',
        '[a]\nkind = "root"\nsha256 = "' + "0" * 64 + '"',
    ],
    ids=["a tenant's without a tenant", "an operator's with one", "no hash", "another kind"],
)
def test_a_file_that_says_something_else_is_refused(path: Path, text: str) -> None:
    path.write_text(text)
    with pytest.raises(StartupError, match="tokens"):
        loaded(path)


def test_who_names_a_file_of_tokens_that_is_not_there_is_in_trouble_until_it_is(path: Path) -> None:
    tokens = loaded(path)
    assert str(path) in str(tokens.trouble())
    assert "`tessera token new`" in str(tokens.trouble())
    add_token(path, "lab")
    tokens.load()
    assert tokens.trouble() is None
    assert TokenFile(None).trouble() is None
