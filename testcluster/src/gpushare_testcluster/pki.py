"""The cluster's certificates: one authority, a serving certificate, client certificates.

Elliptic-curve keys (made in a millisecond), valid for ten days: a test cluster is not for longer.
"""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from gpushare_testcluster.state import write_atomically

VALID_DAYS = 10


class Pki:
    """The files in one folder: ca.crt, ca.key, NAME.crt, NAME.key, service-accounts.key/.pub."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def crt(self, name: str) -> Path:
        return self.folder / f"{name}.crt"

    def key(self, name: str) -> Path:
        return self.folder / f"{name}.key"

    @property
    def ca(self) -> Path:
        return self.crt("ca")

    def create_authority(self) -> None:
        """Makes the certificate authority and the keys that sign service account tokens."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = _name("gpushare-testcluster")
        builder = (
            _builder(name, name, key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_key_usage(ca=True), critical=True)
            .add_extension(
                x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False
            )
        )
        self._write_key("ca", key)
        self._write_certificate("ca", builder.sign(key, hashes.SHA256()))
        signing = ec.generate_private_key(ec.SECP256R1())
        self._write_key("service-accounts", signing)
        public = signing.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        write_atomically(self.folder / "service-accounts.pub", public)

    def issue(
        self,
        file: str,
        user: str,
        *,
        groups: tuple[str, ...] = (),
        names: tuple[str, ...] = (),
        addresses: tuple[str, ...] = (),
    ) -> None:
        """Signs a certificate for server and client use and writes FILE.crt and FILE.key.

        user, groups: what Kubernetes reads from it; names, addresses: what a server answers to.
        """
        ca_key = serialization.load_pem_private_key(self.key("ca").read_bytes(), password=None)
        assert isinstance(ca_key, ec.EllipticCurvePrivateKey)
        ca = x509.load_pem_x509_certificate(self.ca.read_bytes())
        key = ec.generate_private_key(ec.SECP256R1())
        builder = (
            _builder(_name(user, groups), ca.subject, key.public_key())
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(ca=False), critical=True)
            .add_extension(
                x509.ExtendedKeyUsage(
                    [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
                ),
                critical=False,
            )
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()),
                critical=False,
            )
        )
        alternatives: list[x509.GeneralName] = [x509.DNSName(name) for name in names]
        alternatives += [x509.IPAddress(ipaddress.ip_address(address)) for address in addresses]
        if alternatives:
            builder = builder.add_extension(
                x509.SubjectAlternativeName(alternatives), critical=False
            )
        self._write_key(file, key)
        self._write_certificate(file, builder.sign(ca_key, hashes.SHA256()))

    def _write_key(self, file: str, key: ec.EllipticCurvePrivateKey) -> None:
        write_atomically(
            self.key(file),
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.TraditionalOpenSSL,
                serialization.NoEncryption(),
            ),
        )

    def _write_certificate(self, file: str, certificate: x509.Certificate) -> None:
        write_atomically(
            self.crt(file), certificate.public_bytes(serialization.Encoding.PEM), mode=0o644
        )


def _name(user: str, groups: tuple[str, ...] = ()) -> x509.Name:
    attributes = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
    return x509.Name([*attributes, x509.NameAttribute(NameOID.COMMON_NAME, user)])


def _builder(
    subject: x509.Name, issuer: x509.Name, public_key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=VALID_DAYS))
    )


def _key_usage(*, ca: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=ca,
        crl_sign=ca,
        encipher_only=False,
        decipher_only=False,
    )
