"""Certificates and keys of a deployment: CA, server certificate, a key for each SuperNode."""

import datetime
import ipaddress
import os
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

SERVER_YEARS = 2
CA_YEARS = 10  # sites have the CA's certificate, so it must outlive several of the server's
CA_NAME = "moonfl CA"
PEM = serialization.Encoding.PEM
OPENSSH = serialization.Encoding.OpenSSH
NO_PASSWORD = serialization.NoEncryption()
SIGNS_CERTIFICATES = x509.KeyUsage(
    digital_signature=False,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=True,
    crl_sign=True,
    encipher_only=False,
    decipher_only=False,
)  # strict verifiers require it for a CA


def write_certificates(folder: Path, host: str) -> None:
    """Write ca.crt and ca.key, and server.crt and server.key for `host` and loopback."""
    ca_key = new_key()
    server_key = new_key()
    ca = (
        builder(CA_NAME, ca_key, ca_key, CA_YEARS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(SIGNS_CERTIFICATES, critical=True)
    )
    hosts = dict.fromkeys([host, "localhost", "127.0.0.1"])  # without duplicates
    names = [general_name(name) for name in hosts]
    server = (
        builder("moonfl server", server_key, ca_key, SERVER_YEARS)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    )
    write_signed(folder / "ca.crt", ca, ca_key)
    write_signed(folder / "server.crt", server, ca_key)
    write_key(folder / "ca.key", ca_key, serialization.PrivateFormat.PKCS8)
    write_key(folder / "server.key", server_key, serialization.PrivateFormat.PKCS8)


def write_node_key(path: Path) -> None:
    """Write a SuperNode's key pair as `ssh-keygen -t ecdsa -b 384` does: `path` and `path`.pub."""
    key = new_key()
    write_key(path, key, serialization.PrivateFormat.OpenSSH)
    public = key.public_key().public_bytes(OPENSSH, serialization.PublicFormat.OpenSSH)
    path.with_name(path.name + ".pub").write_bytes(public + b"\n")


def new_key() -> ec.EllipticCurvePrivateKey:
    """Return a new private key."""
    return ec.generate_private_key(ec.SECP384R1())


def builder(
    subject: str,
    key: ec.EllipticCurvePrivateKey,
    ca_key: ec.EllipticCurvePrivateKey,
    years: int,
) -> x509.CertificateBuilder:
    """Return the builder of a certificate for `key`, to be signed by the CA."""
    now = datetime.datetime.now(datetime.UTC)
    key_id = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    ca_key_id = x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key())
    return (
        x509.CertificateBuilder()
        .issuer_name(common_name(CA_NAME))
        .subject_name(common_name(subject))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=365 * years))
        .add_extension(key_id, critical=False)
        .add_extension(ca_key_id, critical=False)
    )


def common_name(name: str) -> x509.Name:
    """Return a distinguished name that consists of a common name."""
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def general_name(host: str) -> x509.GeneralName:
    """Return an IP address or a host name in the form that certificates use."""
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def write_signed(
    path: Path, certificate: x509.CertificateBuilder, ca_key: ec.EllipticCurvePrivateKey
) -> None:
    """Sign a certificate with the CA's key, and write it."""
    path.write_bytes(certificate.sign(ca_key, hashes.SHA384()).public_bytes(PEM))


def write_key(
    path: Path, key: ec.EllipticCurvePrivateKey, form: serialization.PrivateFormat
) -> None:
    """Write a private key to a new file that only its owner can read."""
    content = key.private_bytes(PEM, form, NO_PASSWORD)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
