"""A certificate authority, a serving certificate and the key of the service account tokens, made by openssl."""

import subprocess
from dataclasses import dataclass
from pathlib import Path

_DAYS = "2"
_CURVE = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1")  # made in no time, unlike RSA keys
_NAMES = ("IP:127.0.0.1", "DNS:localhost", "DNS:kubernetes.default.svc")
_USES = "extendedKeyUsage=serverAuth,clientAuth"  # NATS servers are each other's clients, too


@dataclass(frozen=True, slots=True)
class Certificates:
    """Everything under one folder; keys are readable by their owner alone."""

    folder: Path

    @property
    def ca(self) -> Path:
        return self.folder / "ca.crt"

    @property
    def ca_key(self) -> Path:
        return self.folder / "ca.key"

    @property
    def serving(self) -> Path:
        return self.folder / "serving.crt"

    @property
    def serving_key(self) -> Path:
        return self.folder / "serving.key"

    @property
    def tokens(self) -> Path:
        """Holds the public key by which the API server knows its service account tokens."""
        return self.folder / "tokens.crt"

    @property
    def tokens_key(self) -> Path:
        return self.folder / "tokens.key"

    @classmethod
    def made_in(cls, folder: Path, *names: str) -> "Certificates":
        """The serving certificate is for this machine, and for `names` as openssl writes them (`DNS:...`, `IP:...`)."""
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        made = cls(folder)
        _request(made.ca, made.ca_key, "/CN=tessera-test-ca")
        _request(
            made.serving,
            made.serving_key,
            "/CN=kube-apiserver",
            *(
                "-CA",
                str(made.ca),
                "-CAkey",
                str(made.ca_key),
                "-addext",
                f"subjectAltName={','.join((*_NAMES, *names))}",
            ),
            *("-addext", "basicConstraints=critical,CA:FALSE", "-addext", _USES),
        )
        _request(made.tokens, made.tokens_key, "/CN=service-accounts")
        return made

    def of_client(self, name: str, group: str) -> tuple[Path, Path]:
        """The certificate and key of a user, as kubeadm makes an administrator's."""
        certificate, key = self.folder / f"{name}.crt", self.folder / f"{name}.key"
        uses = ("-addext", "basicConstraints=critical,CA:FALSE", "-addext", "extendedKeyUsage=clientAuth")
        _request(certificate, key, f"/O={group}/CN={name}", "-CA", str(self.ca), "-CAkey", str(self.ca_key), *uses)
        return certificate, key


def _request(certificate: Path, key: Path, subject: str, *more: str) -> None:
    files = ("-keyout", str(key), "-out", str(certificate))
    command = ("openssl", "req", "-x509", "-nodes", "-days", _DAYS, *_CURVE, "-subj", subject, *files, *more)
    subprocess.run(command, check=True, capture_output=True)
