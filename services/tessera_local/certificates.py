"""The simulated cluster's certificate: clients of Kubernetes send a token over TLS, and many only there."""

from pathlib import Path

from tessera.kernel.errors import StartupError
from tessera.kernel.process.files import write_private
from tessera_local.free_port import LOOPBACK


def write_certificate(path: Path) -> bytes:
    """
    Write a new certificate of the loopback with its key, readable by its owner only; returns its authority's, as PEM.

    The authority signs nothing else: its own key is written nowhere. Raises StartupError without the extra `local`.
    """
    try:
        import trustme
    except ImportError as error:
        raise StartupError("trustme: not found; pip install 'tessera-scheduler[local]'") from error
    authority = trustme.CA(organization_name="Tessera", organization_unit_name="simulated cluster")
    issued = authority.issue_cert(LOOPBACK, "localhost")
    write_private(path, issued.private_key_and_cert_chain_pem.bytes())
    return authority.cert_pem.bytes()
