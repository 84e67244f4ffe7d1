"""The cluster is found as every Kubernetes program finds it."""

import ssl
import subprocess
from base64 import b64encode
from pathlib import Path

import pytest
from aiohttp import web

from tessera.kernel.errors import StartupError
from tessera.kernel.kubernetes.cluster import HttpCluster
from tessera.kernel.kubernetes.kubeconfig import SAME_TOKEN_SECONDS, find_access, kept, mounted_account
from tests.virtual_time import VirtualClock

KUBECONFIG = """
apiVersion: v1
kind: Config
current-context: here
contexts: [{name: here, context: {cluster: c, user: u}}]
clusters: [{name: c, cluster: {server: "https://cluster.example:6443"}}]
users: [{name: u, user: {token: secret-token}}]
"""


def use(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As KUBECONFIG in a new process: the package reads the variable when it is first imported, into two names."""
    monkeypatch.setenv("KUBECONFIG", str(path))
    for module in ("kubernetes.config.kube_config", "kubernetes.config"):
        monkeypatch.setattr(f"{module}.KUBE_CONFIG_DEFAULT_LOCATION", str(path))


def test_the_kubeconfig_names_server_and_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "config"
    path.write_text(KUBECONFIG)
    use(path, monkeypatch)
    access = find_access()
    assert (access.url, access.token()) == ("https://cluster.example:6443", "secret-token")


@pytest.mark.parametrize(
    ("content", "about"),
    [
        (None, "directory"),
        (b"gr\xf6\xdfe: 3\n", "is no kubeconfig"),
        (b"\x00" * 64, "is no kubeconfig"),
        (b"[" * 100_000, "is no kubeconfig"),
        (b"[1, 2]\n", "is no kubeconfig"),
        (b"text\n", "is no kubeconfig"),
        (KUBECONFIG.replace("server:", "certificate-authority-data: '!!!a', server:").encode(), "is no kubeconfig"),
        (KUBECONFIG.replace("server:", "certificate-authority-data: aGVsbG8=, server:").encode(), "certificate or key"),
    ],
    ids=["directory", "latin", "zeros", "deep", "list", "text", "no base64", "no certificate"],
)
def test_a_kubeconfig_that_is_none_is_told_with_its_path(
    content: bytes | None, about: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = tmp_path / "config"
    path.mkdir() if content is None else path.write_bytes(content)
    use(path, monkeypatch)
    with pytest.raises(StartupError, match=about) as told:
        find_access()
    assert str(path) in str(told.value)


def openssl(*words: str) -> None:
    subprocess.run(["openssl", *words], check=True, capture_output=True)


async def test_a_client_certificate_lets_in_as_kind_and_kubeadm_write_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Their kubeconfig holds everything inline. Here a server that asks for the certificate says whose it is."""
    curve = ("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2")
    crt, key = {}, {}
    for name, more in (("ca", ()), ("server", ("subjectAltName=IP:127.0.0.1",)), ("admin", ())):
        crt[name], key[name] = tmp_path / f"{name}.crt", tmp_path / f"{name}.key"
        files = ("-keyout", str(key[name]), "-out", str(crt[name]), "-subj", f"/CN={name}")
        signed = () if name == "ca" else ("-CA", str(crt["ca"]), "-CAkey", str(key["ca"]))
        openssl(*curve, *files, *signed, *(word for each in more for word in ("-addext", each)))
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(crt["ca"]))
    tls.verify_mode = ssl.CERT_REQUIRED
    tls.load_cert_chain(crt["server"], key["server"])

    async def whoami(request: web.Request) -> web.Response:
        subject = dict(pair for part in request.get_extra_info("peercert")["subject"] for pair in part)
        return web.json_response({"metadata": {"name": subject["commonName"]}})

    app = web.Application()
    app.router.add_get("/{path:.*}", whoami)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
    await site.start()
    port = site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]
    inline = {what: b64encode(path.read_bytes()).decode() for what, path in (("ca", crt["ca"]), ("crt", crt["admin"]))}
    path = tmp_path / "config"
    path.write_text(f"""
apiVersion: v1
kind: Config
current-context: here
contexts: [{{name: here, context: {{cluster: c, user: u}}}}]
clusters: [{{name: c, cluster: {{server: "https://127.0.0.1:{port}", certificate-authority-data: {inline["ca"]}}}}}]
users: [{{name: u, user: {{client-certificate-data: {inline["crt"]}, client-key: "{key["admin"]}"}}}}]
""")
    use(path, monkeypatch)
    access = find_access()
    cluster = HttpCluster(access.url, access.token, access.ca_file, client=access.client)
    try:
        assert (await cluster.get_pod("lab", "any"))["metadata"]["name"] == "admin"
    finally:
        await cluster.close()
        await runner.cleanup()


def test_without_any_configuration_one_line_says_what_to_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    missing = str(tmp_path / "none")
    use(Path(missing), monkeypatch)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(StartupError, match="TESSERA_CLUSTER_URL") as failure:
        find_access()
    assert "\n" not in str(failure.value)


async def test_a_token_is_asked_for_again_after_a_while():
    clock, tokens = VirtualClock(), iter(["first", "second"])
    token = kept(lambda: next(tokens), clock)
    assert [token(), token()] == ["first", "first"]
    await clock.run(SAME_TOKEN_SECONDS)
    assert token() == "second"


def test_the_account_of_a_pod_is_found_without_any_package(tmp_path: Path) -> None:
    inside = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT_HTTPS": "6443"}
    assert mounted_account(tmp_path, inside) is None  # no files
    (tmp_path / "token").write_text("first\n")
    (tmp_path / "ca.crt").write_text("")
    assert mounted_account(tmp_path, {}) is None  # not in a pod
    found = mounted_account(tmp_path, inside)
    assert found is not None
    assert (found.url, found.token(), found.ca_file) == ("https://[fd00::1]:6443", "first", tmp_path / "ca.crt")
