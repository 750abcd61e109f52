"""Servers of Google Cloud Storage and of Azure's blobs on loopback, with the requests that obstore's clients make.

Objects lie in memory. What the two do differently is what clients see: paths, listings in pages, ETags (those of
Azure's listings have no quotes), conditions, ranges, uploads in pieces, many removals in one request, and errors.
"""

import base64
import hashlib
import http.server
import itertools
import json
import re
import threading
import uuid
from email.utils import formatdate
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

BUCKET = "bucket"
_PAGE = 50  # entries of a listing; the services have some thousand
_WRITTEN = itertools.count(1)


class Codes(NamedTuple):
    """What a service calls errors: of a bucket and of an object that is not there, and of a condition."""

    bucket: str
    key: str
    changed: str


class Blob(NamedTuple):
    """A complete object."""

    data: bytes
    etag: str
    written: str

    @classmethod
    def of(cls, data: bytes) -> "Blob":
        """Return an object that is written now; its ETag is that of no other one, even of the same bytes."""
        return cls(data, f"0x{next(_WRITTEN):015X}", formatdate(usegmt=True))


class StoreServer(http.server.ThreadingHTTPServer):
    """A server of many clients that come at once: with Python's queue of five, some would wait a second or more."""

    request_queue_size = 128
    daemon_threads = True


class CloudServer:
    """A server of one bucket, in threads of this process.

    Attributes:
        objects: the complete objects by name.
        pieces: of uploads that are not complete, by upload and by the number or name of the piece.
        lock: guards both.
    """

    def __init__(self) -> None:
        self.objects: dict[str, Blob] = {}
        self.pieces: dict[str, dict[str, bytes]] = {}
        self.lock = threading.Lock()
        handler = type("Handler", (self.handler,), {"server_of": self})
        self._server = StoreServer(("127.0.0.1", 0), handler)
        self._server.handle_error = lambda request, address: None  # a client that has gone
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def put(self, folder: Path, prefix: str) -> None:
        """Copy a folder of files to the bucket."""
        for path in (one for one in folder.rglob("*") if one.is_file()):
            self.put_bytes(f"{prefix}/{path.relative_to(folder)}", path.read_bytes())

    def put_bytes(self, key: str, data: bytes) -> None:
        """Write one object."""
        with self.lock:
            self.objects[key] = Blob.of(data)

    def keys(self, prefix: str) -> list[str]:
        """Return the names of the objects below a folder, in order."""
        return sorted(key.removeprefix(f"{prefix}/") for key in list(self.objects) if key.startswith(f"{prefix}/"))

    def unfinished(self) -> int:
        """Return the number of uploads in pieces that are neither complete nor removed."""
        return len(self.pieces)

    def delete(self, key: str) -> None:
        """Remove one object."""
        with self.lock:
            del self.objects[key]

    def get(self, key: str) -> bytes:
        """Return the bytes of one object."""
        return self.objects[key].data

    def close(self) -> None:
        """End the server."""
        self._server.shutdown()
        self._server.server_close()


class _Handler(http.server.BaseHTTPRequestHandler):
    """What both services do: objects are read whole or by ranges, under conditions."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server_of: CloudServer
    codes: Codes

    def do_GET(self) -> None:
        split = urlsplit(self.path)
        bucket, _, key = split.path.lstrip("/").partition("/")
        self.query = {name: values[0] for name, values in parse_qs(split.query, keep_blank_values=True).items()}
        self.key = unquote(key)
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if bucket != BUCKET:
            self.refuse(404, self.codes.bucket)
        elif self.is_refused():
            self.refuse(403, "AuthenticationFailed")
        elif self.command in ("GET", "HEAD") and self.key:
            self.read()
        elif self.command == "GET":
            self.listing()
        else:
            getattr(self, self.command.lower())()

    do_HEAD = do_PUT = do_POST = do_DELETE = do_GET  # noqa: N815 - names that the library looks for

    def is_refused(self) -> bool:
        """Whether the request lacks a signature that it has to have."""
        raise NotImplementedError

    def listing(self) -> None:
        """Answer one page of a listing."""
        raise NotImplementedError

    def read(self) -> None:
        """Answer an object, or a range of it, as RFC 9110 has it."""
        if (blob := self.server_of.objects.get(self.key)) is None:
            return self.refuse(404, self.codes.key)
        if self.headers.get("If-Match") not in (None, "*", f'"{blob.etag}"'):
            return self.refuse(412, self.codes.changed)
        headers = {**self.about(blob), "Content-Type": "application/octet-stream", "Accept-Ranges": "bytes"}
        if (wanted := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")) is None:
            return self.answer(200, blob.data, headers)
        size, begin = len(blob.data), int(wanted[1])
        if begin >= size:
            return self.refuse(416, "InvalidRange", {"Content-Range": f"bytes */{size}"})
        end = min(int(wanted[2] or size) + 1, size)
        return self.answer(206, blob.data[begin:end], headers | {"Content-Range": f"bytes {begin}-{end - 1}/{size}"})

    def page(self, token: str) -> tuple[list[tuple[str, Blob | None]], str]:
        """Return a page of the names that are asked for, None for a folder, and the token of the next one."""
        prefix, delimiter = self.query.get("prefix", ""), self.query.get("delimiter")
        with self.server_of.lock:
            found: dict[str, Blob | None] = dict(self.server_of.objects)
        found = {key: blob for key, blob in found.items() if key.startswith(prefix)}
        if delimiter:
            inner = {key: key.removeprefix(prefix).partition(delimiter) for key in found}
            found = {
                prefix + name + mark: None if mark else found[key] for key, (name, mark, _) in sorted(inner.items())
            }
        begin = int(token or 0)
        more = str(begin + _PAGE) if begin + _PAGE < len(found) else ""
        return sorted(found.items())[begin : begin + _PAGE], more

    def store(self, data: bytes, status: int, is_new: bool, refused: tuple[int, str]) -> None:
        """Write an object, if there has to be none and is one with the status and the code of a refusal."""
        with self.server_of.lock:
            if is_new and self.key in self.server_of.objects:
                return self.refuse(*refused)
            blob = self.server_of.objects[self.key] = Blob.of(data)
        return self.answer(status, b"", self.about(blob))

    def about(self, blob: Blob) -> dict[str, str]:
        """Return the headers of an object."""
        return {"ETag": f'"{blob.etag}"', "Last-Modified": blob.written}

    def refuse(self, status: int, code: str, headers: dict[str, str] | None = None) -> None:
        """Answer an error."""
        said = f"<?xml version='1.0' encoding='utf-8'?><Error><Code>{code}</Code><Message>{code}</Message></Error>"
        self.answer(status, said.encode(), {"Content-Type": "application/xml", **(headers or {})})

    def answer(self, status: int, data: bytes, headers: dict[str, str]) -> None:
        """Answer a request."""
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def log_message(self, *_arguments) -> None:
        pass


class _GoogleHandler(_Handler):
    """The XML interface of Google Cloud Storage."""

    codes = Codes("NoSuchBucket", "NoSuchKey", "PreconditionFailed")

    def is_refused(self) -> bool:
        return (
            self.command in ("PUT", "DELETE") and "uploadId" not in self.query and "Authorization" not in self.headers
        )

    def listing(self) -> None:
        entries, more = self.page(self.query.get("continuation-token", ""))
        texts = [
            f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>"
            if blob is None
            else f"<Contents><Key>{escape(name)}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
            f"<ETag>&quot;{blob.etag}&quot;</ETag><Size>{len(blob.data)}</Size></Contents>"
            for name, blob in entries
        ]
        token = f"<NextContinuationToken>{more}</NextContinuationToken>" if more else ""
        self._xml(f"<ListBucketResult>{''.join(texts)}{token}</ListBucketResult>")

    def put(self) -> None:
        if "uploadId" not in self.query:
            is_new = self.headers.get("x-goog-if-generation-match") == "0"
            return self.store(self.body, 200, is_new, (412, self.codes.changed))
        with self.server_of.lock:
            if (pieces := self.server_of.pieces.get(self.query["uploadId"])) is None:
                return self.refuse(404, "NoSuchUpload")
            pieces[self.query["partNumber"]] = self.body
        return self.answer(200, b"", {"ETag": _etag(self.body)})

    def post(self) -> None:
        if "uploads" in self.query:
            with self.server_of.lock:
                self.server_of.pieces[upload := uuid.uuid4().hex] = {}
            said = f"<Bucket>{BUCKET}</Bucket><Key>{escape(self.key)}</Key><UploadId>{upload}</UploadId>"
            return self._xml(f"<InitiateMultipartUploadResult>{said}</InitiateMultipartUploadResult>")
        listed = re.findall(r"<ETag>(.*?)</ETag><PartNumber>(\d+)<", self.body.decode().replace("&quot;", '"'))
        with self.server_of.lock:
            if (pieces := self.server_of.pieces.pop(self.query["uploadId"], None)) is None:
                return self.refuse(404, "NoSuchUpload")
            if [number for _, number in listed] != sorted(pieces, key=int) or any(
                etag != _etag(pieces[number]) for etag, number in listed
            ):
                return self.refuse(400, "InvalidPart")
            blob = self.server_of.objects[self.key] = Blob.of(b"".join(pieces[number] for _, number in listed))
        said = f"<Bucket>{BUCKET}</Bucket><Key>{escape(self.key)}</Key><ETag>&quot;{blob.etag}&quot;</ETag>"
        return self._xml(f"<CompleteMultipartUploadResult>{said}</CompleteMultipartUploadResult>")

    def delete(self) -> None:
        upload = self.query.get("uploadId")
        with self.server_of.lock:
            there = self.server_of.pieces if upload else self.server_of.objects
            if there.pop(upload or self.key, None) is None:
                return self.refuse(404, "NoSuchUpload" if upload else self.codes.key)
        return self.answer(204, b"", {})

    def _xml(self, text: str) -> None:
        self.answer(200, f"<?xml version='1.0' encoding='UTF-8'?>{text}".encode(), {"Content-Type": "application/xml"})


class _AzureHandler(_Handler):
    """Block blobs of Azure, of which each request is signed."""

    codes = Codes("ContainerNotFound", "BlobNotFound", "ConditionNotMet")

    def is_refused(self) -> bool:
        return not self.headers.get("Authorization", "").startswith("SharedKey account:")

    def listing(self) -> None:
        entries, more = self.page(self.query.get("marker", ""))
        texts = [
            f"<BlobPrefix><Name>{escape(name)}</Name></BlobPrefix>"
            if blob is None
            else f"<Blob><Name>{escape(name)}</Name><Properties><Last-Modified>{blob.written}</Last-Modified>"
            f"<Etag>{blob.etag}</Etag><Content-Length>{len(blob.data)}</Content-Length>"
            "<Content-Type>application/octet-stream</Content-Type></Properties></Blob>"
            for name, blob in entries
        ]
        said = f"<Blobs>{''.join(texts)}</Blobs><NextMarker>{more}</NextMarker>"
        text = f'<?xml version="1.0" encoding="utf-8"?><EnumerationResults>{said}</EnumerationResults>'
        self.answer(200, text.encode(), {"Content-Type": "application/xml"})

    def put(self) -> None:
        kind = self.query.get("comp")
        if kind == "block":
            with self.server_of.lock:
                self.server_of.pieces.setdefault(self.key, {})[self.query["blockid"]] = self.body
            return self.answer(201, b"", {})
        data = self.body
        if kind == "blocklist":
            listed = re.findall(r"<(?:Uncommitted|Latest)>(.*?)</", self.body.decode())
            pieces = self.server_of.pieces.get(self.key, {})
            if not listed or any(name not in pieces for name in listed):
                return self.refuse(400, "InvalidBlockList")
            data = b"".join(pieces[name] for name in listed)
        elif self.headers.get("x-ms-blob-type") != "BlockBlob":
            return self.refuse(400, "MissingRequiredHeader")
        with self.server_of.lock:
            self.server_of.pieces.pop(self.key, None)
        return self.store(data, 201, self.headers.get("If-None-Match") == "*", (409, "BlobAlreadyExists"))

    def post(self) -> None:
        """Remove many objects."""
        keys = re.findall(rf"DELETE /{BUCKET}/(\S+) HTTP/1.1", self.body.decode())
        boundary, answers = f"batchresponse_{uuid.uuid4()}", ""
        for number, key in enumerate(keys):
            with self.server_of.lock:
                is_there = self.server_of.objects.pop(unquote(key), None) is not None
            status = "202 Accepted" if is_there else "404 The specified blob does not exist."
            code = "" if is_there else "x-ms-error-code: BlobNotFound\r\n"
            answers += f"--{boundary}\r\nContent-Type: application/http\r\nContent-ID: {number}\r\n\r\n"
            answers += f"HTTP/1.1 {status}\r\n{code}x-ms-version: 2023-11-03\r\n\r\n"
        text = f"{answers}--{boundary}--\r\n"
        self.answer(202, text.encode(), {"Content-Type": f"multipart/mixed; boundary={boundary}"})

    def refuse(self, status: int, code: str, headers: dict[str, str] | None = None) -> None:
        super().refuse(status, code, {"x-ms-error-code": code, **(headers or {})})


def _etag(data: bytes) -> str:
    return f'"{hashlib.md5(data, usedforsecurity=False).hexdigest()}"'


class GoogleServer(CloudServer):
    """A server of Google Cloud Storage."""

    handler = _GoogleHandler

    @staticmethod
    def environment(port: int) -> dict[str, str]:
        """Return what obstore reads from the environment to come to a port: an account whose requests have no token."""
        account = {"gcs_base_url": f"http://127.0.0.1:{port}", "disable_oauth": True}
        account |= dict.fromkeys(("client_email", "private_key", "private_key_id"), "")
        return {"GOOGLE_SERVICE_ACCOUNT_KEY": json.dumps(account), "GOOGLE_ALLOW_HTTP": "true"}


class AzureServer(CloudServer):
    """A server of blobs of Azure."""

    handler = _AzureHandler

    @staticmethod
    def environment(port: int) -> dict[str, str]:
        """Return what obstore reads from the environment to come to a port."""
        return {
            "AZURE_STORAGE_ENDPOINT": f"http://127.0.0.1:{port}",
            "AZURE_STORAGE_ACCOUNT_NAME": "account",
            "AZURE_STORAGE_ACCOUNT_KEY": base64.b64encode(b"key").decode(),
        }
