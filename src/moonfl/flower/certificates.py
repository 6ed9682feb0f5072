"""Certificates and keys of a deployment: a CA, the server's certificate, and a key for each SuperNode."""

import datetime
import ipaddress
import os
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

YEARS, CA_YEARS = 2, 10  # the CA's is at the sites, so a new server's must still be good by it
PEM = serialization.Encoding.PEM
CLEAR = serialization.NoEncryption()


def write_certificates(folder: Path, host: str) -> None:
    """ca.crt and ca.key; server.crt, good for `host` and for loopback, and server.key."""
    authority, key = (ec.generate_private_key(ec.SECP384R1()) for _ in range(2))
    signs = x509.KeyUsage(
        digital_signature=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )  # strict verifiers ask for it
    ca = (
        certificate("moonfl CA", authority, "moonfl CA", authority, CA_YEARS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(signs, critical=True)
    )
    names = [name_of(name) for name in dict.fromkeys([host, "localhost", "127.0.0.1"])]
    server = (
        certificate("moonfl server", key, "moonfl CA", authority)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    )
    for name, made, own in (("ca", ca, authority), ("server", server, key)):
        (folder / f"{name}.crt").write_bytes(
            made.sign(authority, hashes.SHA384()).public_bytes(PEM)
        )
        write_secret(
            folder / f"{name}.key", own.private_bytes(PEM, serialization.PrivateFormat.PKCS8, CLEAR)
        )


def write_node_key(path: Path) -> None:
    """A SuperNode's key as ssh-keygen -t ecdsa -b 384 makes it: `path` and `path`.pub."""
    key = ec.generate_private_key(ec.SECP384R1())
    write_secret(path, key.private_bytes(PEM, serialization.PrivateFormat.OpenSSH, CLEAR))
    openssh = serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    path.with_name(path.name + ".pub").write_bytes(key.public_key().public_bytes(*openssh) + b"\n")


def certificate(
    subject: str,
    key: ec.EllipticCurvePrivateKey,
    issuer: str,
    authority: ec.EllipticCurvePrivateKey,
    years: int = YEARS,
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    named = [
        x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]) for name in (subject, issuer)
    ]
    signed_by = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key())
    return (
        x509.CertificateBuilder(named[1], named[0], key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=365 * years))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(signed_by, critical=False)
    )


def name_of(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def write_secret(path: Path, content: bytes) -> None:
    """For its owner alone."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
