"""Which shard a command speaks to, and as whom: logins to HTTP APIs beside credentials for NATS."""

import stat
from pathlib import Path

import pytest

from tessera.client.connect.api import Api
from tessera.client.connect.contexts import LOCAL, ApiLogin, Contexts, check_url, file_of
from tessera.client.connect.locating import find
from tessera.client.outcomes import Exit, Failure

PROD, TEST = ApiLogin("https://prod.example.org", "tessera_a_b"), ApiLogin("https://test.example.org", "tessera_c_d")


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {"XDG_CONFIG_HOME": str(tmp_path / "config")}


def test_a_login_is_kept_for_its_owner_alone_and_is_in_use(environment: dict[str, str]) -> None:
    path = Contexts({}).add("prod", PROD).write(environment)
    assert path == file_of(environment)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert Contexts.read(environment) == Contexts({"prod": PROD}, "prod")
    assert find(environment=environment).login == PROD


def test_the_context_in_use_changes_by_name_and_local_means_none(environment: dict[str, str]) -> None:
    both = Contexts({}).add("prod", PROD).add("test", TEST)
    both.use("prod").write(environment)
    assert find(environment=environment).login == PROD
    assert find(environment=environment, context="test").login == TEST
    both.use(LOCAL).write(environment)
    with pytest.raises(Failure, match="nothing runs in"):
        find(environment=environment | {"TESSERA_HOME": "nowhere"})
    with pytest.raises(Failure, match="context other: there is none; there are local, prod, test") as raised:
        both.use("other")
    assert raised.value.code is Exit.NOT_FOUND


def test_a_context_that_is_deleted_is_in_use_no_more() -> None:
    left = Contexts({}).add("prod", PROD).drop("prod")
    assert left == Contexts({})


def test_variables_name_the_api_and_its_token_before_any_saved_login(
    environment: dict[str, str], tmp_path: Path
) -> None:
    Contexts({}).add("test", TEST).write(environment)
    (tmp_path / "token").write_text("tessera_e_f\n")
    named = environment | {"TESSERA_API": f"{PROD.url}/"}
    assert find(environment=named | {"TESSERA_TOKEN": "tessera_a_b"}).login == PROD
    assert find(environment=named | {"TESSERA_TOKEN_FILE": str(tmp_path / "token")}).login == ApiLogin(
        PROD.url, "tessera_e_f"
    )
    assert find(environment=environment | {"TESSERA_API": TEST.url}).login == TEST
    with pytest.raises(Failure, match=r"no token for https://prod\.example\.org"):
        find(environment=named)


def test_a_directory_that_is_named_wins_over_a_login(environment: dict[str, str], tmp_path: Path) -> None:
    Contexts({}).add("prod", PROD).write(environment)
    with pytest.raises(Failure, match="nothing runs in"):
        find(tmp_path, environment)
    with pytest.raises(Failure, match="nothing runs in"):
        find(environment=environment | {"TESSERA_HOME": str(tmp_path)})


def test_a_damaged_file_of_contexts_is_an_error_that_names_it(environment: dict[str, str]) -> None:
    path = Contexts({}).write(environment)
    path.write_text("[]")
    with pytest.raises(Failure, match=r"contexts\.json: cannot be read"):
        Contexts.read(environment)


def test_what_needs_credentials_for_nats_says_so(environment: dict[str, str]) -> None:
    Contexts({}).add("prod", PROD).write(environment)
    with pytest.raises(Failure, match=r"https://prod\.example\.org does not offer this"):
        find(environment=environment).identity("operator")


@pytest.mark.parametrize(
    "url",
    [
        "prod.example.org",
        "ftp://prod.example.org",
        "http://prod.example.org",
        "http://[::1",
        "https://a:99999",
        "https://a:0",
    ],
)
def test_a_token_goes_only_to_an_address_that_keeps_it_secret(url: str) -> None:
    with pytest.raises(Failure):
        check_url(url)
    assert check_url("http://127.0.0.1:8480/") == "http://127.0.0.1:8480"


@pytest.mark.parametrize("token", ["two\nlines", "a blank", "ümlaut", ""])
def test_what_cannot_be_a_token_is_said_before_it_is_sent(token: str) -> None:
    with pytest.raises(Failure, match="not a token; give the word"):
        Api(ApiLogin(PROD.url, token))
