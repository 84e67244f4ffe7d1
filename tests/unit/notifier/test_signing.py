"""Signatures as the Standard Webhooks specification has them."""

from pathlib import Path

import pytest

from tessera.kernel.errors import Transient
from tessera.kernel.messaging.signing import headers, read_secrets


def write(directory: Path, text: str) -> None:
    (directory / "lab.chat").write_text(text)


def test_the_example_of_the_specifications_libraries_is_signed_alike(tmp_path: Path) -> None:
    write(tmp_path, "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n")
    secrets = read_secrets(tmp_path, "lab", "chat")
    made = headers(secrets, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, b'{"test": 2432232314}')
    assert made == {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }


def test_two_secrets_make_two_signatures_and_a_third_is_left_out(tmp_path: Path) -> None:
    write(tmp_path, "\n".join(letter * 20 for letter in "abc"))
    both = headers(read_secrets(tmp_path, "lab", "chat"), "id", 1, b"body")["webhook-signature"].split()
    write(tmp_path, "b" * 20)
    (old,) = headers(read_secrets(tmp_path, "lab", "chat"), "id", 1, b"body")["webhook-signature"].split()
    assert len(both) == 2
    assert both[1] == old


@pytest.mark.parametrize("text", ["", "too-short", "whsec_not base64!", "whsec_AAAA", "a" * 20 + "\nshort"])
def test_a_secret_that_signs_nothing_well_is_refused_and_not_shown(tmp_path: Path, text: str) -> None:
    write(tmp_path, text)
    with pytest.raises(Transient, match="no secret") as refused:
        read_secrets(tmp_path, "lab", "chat")
    assert not text or text not in str(refused.value)


def test_a_secret_that_is_not_there_is_refused(tmp_path: Path) -> None:
    for directory in (None, tmp_path):
        with pytest.raises(Transient, match="no secret"):
            read_secrets(directory, "lab", "chat")
