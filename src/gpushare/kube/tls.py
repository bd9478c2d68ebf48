"""The TLS context towards the API server, and reading its files again.

The context lives as long as the process; CA bundles and client certificates do not. `reload` reads
the files again into the same context, so that new connections use them and running ones go on: the
connection calls it when a certificate is not accepted, by them or by us.

Like Go, and unlike `ssl.create_default_context` since Python 3.13, certificates are not held to
VERIFY_X509_STRICT: the CAs that common installers generate lack the key identifiers it demands.
"""

from __future__ import annotations

import contextlib
import ssl
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from gpushare.kube.errors import ConfigError

Pem = Path | bytes
"""A PEM in a file, or its content."""


@contextlib.contextmanager
def _as_file(pem: Pem) -> Iterator[str]:
    """A PEM as a file name, which ssl wants for keys; readable by us alone, gone after use."""
    if isinstance(pem, Path):
        yield str(pem)
        return
    with tempfile.NamedTemporaryFile() as file:
        file.write(pem)
        file.flush()
        yield file.name


def _no_password() -> str:
    raise ValueError("the client key is encrypted; kubectl does not support that either")


def tls_context(
    origin: str,
    *,
    ca: Pem | None = None,
    insecure: bool = False,
    client_cert: Pem | None = None,
    client_key: Pem | None = None,
) -> tuple[ssl.SSLContext, Callable[[], None]]:
    """The context, and the function that reads its files again. Without `ca`, the system's CAs.

    Raises: ConfigError, also from the function returned.
    """
    if (client_cert is None) != (client_key is None):
        raise ConfigError(f"{origin}: client certificate and key come together; one is missing")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE

    def reload() -> None:
        if ca is not None:
            try:
                if isinstance(ca, bytes):
                    context.load_verify_locations(cadata=ca.decode("ascii", "replace"))
                else:
                    context.load_verify_locations(cafile=ca)
            except (OSError, ValueError) as error:
                what = "certificate-authority-data" if isinstance(ca, bytes) else f"CA file {ca}"
                raise ConfigError(f"{origin}: {what}: {error}") from error
        if client_cert is not None and client_key is not None:
            try:
                with _as_file(client_cert) as cert, _as_file(client_key) as key:
                    context.load_cert_chain(cert, key, password=_no_password)
            except (OSError, ValueError) as error:
                raise ConfigError(f"{origin}: client certificate or key: {error}") from error

    reload()
    if ca is None and not insecure:
        context.load_default_certs()
    return context, reload
