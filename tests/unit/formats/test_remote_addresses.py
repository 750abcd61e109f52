"""Addresses of stores other than S3: what reaches obstore, and a server with a certificate of its own."""

import datetime
import http.server
import ipaddress
import os
import socket
import ssl
import subprocess
import sys
import threading

import obstore
import pytest
import torch
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from obstore.store import HTTPStore

import memload
from memload.formats.remote.addresses import Address
from memload.formats.remote.repeating import Requests, said


class RangeHandler(http.server.SimpleHTTPRequestHandler):
    """Serves files, and ranges of them."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        try:
            with open(self.translate_path(self.path), "rb") as file:  # noqa: PTH123 - the library's own text
                data = file.read()
        except OSError:
            return self.send_error(404)
        asked = self.headers.get("Range")
        begin, end = (int(at) for at in asked.removeprefix("bytes=").split("-")) if asked else (0, len(data) - 1)
        self.send_response(206 if asked else 200)
        if asked:
            self.send_header("Content-Range", f"bytes {begin}-{end}/{len(data)}")
        self.send_header("Content-Length", str(end + 1 - begin))
        self.send_header("Last-Modified", "Wed, 25 Nov 2026 00:00:00 GMT")
        self.end_headers()
        self.wfile.write(data[begin : end + 1])
        return None

    def log_message(self, *arguments):
        pass


@pytest.fixture
def certificate(tmp_path):
    """A certificate of this machine's that nobody else has signed, and its key, in one file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.timezone.utc)
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .sign(key, hashes.SHA256())
    )
    path = tmp_path / "certificate.pem"
    no = serialization.NoEncryption()
    private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, no)
    path.write_bytes(made.public_bytes(serialization.Encoding.PEM) + private)
    return path


@pytest.fixture
def secure(tmp_path, certificate):
    """The address of a set on a server with TLS."""
    memload.write(tmp_path / "served" / "set", {"x": torch.arange(100)}, progress=False)

    def handler(*arguments):
        return RangeHandler(*arguments, directory=tmp_path / "served")

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
        server.handle_error = lambda *arguments: None
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield f"https://127.0.0.1:{server.server_address[1]}/set"
        server.shutdown()


def test_a_certificate_that_nobody_trusts_is_told_at_once(secure):
    with pytest.raises(memload.ShardReadError, match=r"1 attempt .* its certificate is not one that"):
        memload.open(secure)


def test_a_store_object_may_trust_it(secure):
    store = HTTPStore(secure, client_options={"allow_invalid_certificates": True})
    assert memload.open(store)[42]["x"] == 42


def test_a_file_of_certificates_may_name_it(secure, certificate):
    program = f"import memload; print(int(memload.open({secure!r})[42]['x']))"
    environment = {**os.environ, "SSL_CERT_FILE": str(certificate)}
    told = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert (told.stdout, told.returncode) == ("42\n", 0), told.stderr


@pytest.mark.parametrize(
    ("url", "environment", "kind", "config"),
    [
        ("s3://bucket/a/b", {"AWS_SKIP_SIGNATURE": "true"}, "S3Store", ("bucket", "bucket")),
        ("gs://bucket/a/b", {"GOOGLE_SKIP_SIGNATURE": "true"}, "GCSStore", ("bucket", "bucket")),
        ("az://box/a/b", {"AZURE_STORAGE_ACCOUNT_NAME": "acct"}, "AzureStore", ("container_name", "box")),
    ],
)
def test_what_an_address_becomes(url, environment, kind, config, monkeypatch):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    for objects, retries in ((Address(url).objects(), 0), (Address(url).writable(), 6)):
        store = objects.store
        assert type(store).__name__ == kind
        assert store.prefix == "a/b"
        assert store.config[config[0]] == config[1]
        assert store.client_options["connect_timeout"] == "10s"
        assert store.retry_config["max_retries"] == retries


@pytest.mark.parametrize(
    ("name", "value", "is_allowed"),
    [
        ("AZURE_STORAGE_ENDPOINT", "http://127.0.0.1:10000/acct", True),
        ("AZURE_STORAGE_ENDPOINT", "https://127.0.0.1:10000/acct", False),
        ("AZURE_ALLOW_HTTP", "true", True),
        ("GOOGLE_BASE_URL", "HTTP://127.0.0.1", True),
        ("GOOGLE_ALLOW_HTTP", "0", False),
        ("AWS_ENDPOINT_URL", "http://127.0.0.1", True),
    ],
)
def test_an_endpoint_without_tls_may_be_that_of_any_store(name, value, is_allowed, monkeypatch):
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "acct")
    monkeypatch.setenv(name, value)
    assert ("allow_http" in Address("az://box/a").objects().store.client_options) is is_allowed


@pytest.mark.parametrize("code", ["NoSuchBucket", "ContainerNotFound"])
def test_a_missing_bucket_or_container_is_named_in_any_request(code):
    error = Requests("az://box/a", 1.0).named("x", OSError(f"404 Not Found: <Error><Code>{code}</Code></Error>"))
    assert type(error) is FileNotFoundError
    assert str(error).startswith("az://box/a/x: there is no such bucket; check its name, and the endpoint")


@pytest.fixture
def metadata_service(monkeypatch):
    """A service of a cloud machine that has no credentials to give, and an environment that has none."""
    for name in [name for name in os.environ if name.startswith(("AWS_", "GOOGLE_", "AZURE_"))]:
        monkeypatch.delenv(name)

    class Refusing(RangeHandler):
        def do_PUT(self):
            self.send_error(403)

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as server:
        monkeypatch.setenv("AWS_METADATA_ENDPOINT", f"http://127.0.0.1:{server.server_address[1]}")
        monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield
        server.shutdown()


def test_an_environment_without_credentials_is_told_in_one_line(metadata_service):
    with pytest.raises(PermissionError) as caught:
        memload.open("s3://bucket/x")
    said = str(caught.value)
    assert said.startswith("s3://bucket/x/index.json: no credentials are stated, and no metadata service")
    assert said.endswith(
        "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (~/.aws is not read), or for a public bucket "
        "AWS_SKIP_SIGNATURE=true"
    )


def test_an_azure_address_without_an_account_is_told_to_name_one(monkeypatch):
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    with pytest.raises(ValueError, match=r"\(.*Account must be specified\); set AZURE_STORAGE_ACCOUNT_NAME$"):
        memload.open("az://container/x")


def test_a_refused_connection_is_said_by_the_reason_of_the_system():
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        store = HTTPStore(
            f"http://127.0.0.1:{closed.getsockname()[1]}/x",
            client_options={"allow_http": True},
            retry_config={"max_retries": 0},
        )
        with pytest.raises(obstore.exceptions.GenericError) as caught:
            obstore.get(store, "index.json")
    assert said(caught.value).endswith("error sending request: Connection refused")
    assert "Debug" not in said(caught.value)
