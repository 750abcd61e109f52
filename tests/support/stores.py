"""A server of object stores on loopback, in a process of its own, and a proxy that is slow, fails and lies."""

import http.client
import http.server
import re
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

import obstore
from cloud_stores import BUCKET, CloudServer, StoreServer
from obstore.store import S3Store
from waiting import MOST_SECONDS

_SERVER = """
import logging, sys
from moto.server import ThreadedMotoServer
logging.getLogger("werkzeug").setLevel(logging.ERROR)
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
server.stop()
"""


class Server:
    """An S3 server with one bucket; it ends when its process's input does, at the latest with the tests."""

    def __init__(self) -> None:
        command = [sys.executable, "-W", "ignore", "-c", _SERVER]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self.port = int(self._process.stdout.readline())
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/{BUCKET}", method="PUT")
        urllib.request.urlopen(request, timeout=MOST_SECONDS).close()
        self._store = store_at(self.port, "")

    def put(self, folder: Path, prefix: str) -> None:
        """Copy a folder of files to the bucket."""
        for path in sorted(one for one in folder.rglob("*") if one.is_file()):
            self.put_bytes(f"{prefix}/{path.relative_to(folder)}", path.read_bytes())

    def put_bytes(self, key: str, data: bytes) -> None:
        """Write one object."""
        obstore.put(self._store, key, data, use_multipart=False)

    def keys(self, prefix: str) -> list[str]:
        """Return the names of the objects below a folder, in order."""
        found = [one["path"] for chunk in obstore.list(self._store, prefix) for one in chunk]
        return sorted(path.removeprefix(f"{prefix}/") for path in found)

    def unfinished(self) -> int:
        """Return the number of uploads in pieces that are neither complete nor removed."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/{BUCKET}?uploads", timeout=MOST_SECONDS) as answer:
            return answer.read().count(b"<UploadId>")

    def delete(self, key: str) -> None:
        """Remove one object."""
        obstore.delete(self._store, key)

    def get(self, key: str) -> bytes:
        """Return the bytes of one object."""
        return bytes(obstore.get(self._store, key).bytes())

    @staticmethod
    def environment(port: int) -> dict[str, str]:
        """Return what obstore reads from the environment to come to a port."""
        return {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_REGION": "us-east-1",
        }

    def close(self) -> None:
        """End the server."""
        self._process.stdin.close()
        try:
            self._process.wait(MOST_SECONDS)
        except subprocess.TimeoutExpired:  # on a busy machine; nothing is lost with it
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()


def store_at(port: int, prefix: str, bucket: str = BUCKET, **client) -> S3Store:
    """Return a store of obstore at a port of this machine, which does not repeat requests itself."""
    return S3Store(
        bucket,
        prefix=prefix or None,
        endpoint=f"http://127.0.0.1:{port}",
        region="us-east-1",
        access_key_id="key",
        secret_access_key="secret",
        client_options={"allow_http": True, "timeout": "10s", **client},
        retry_config={"max_retries": 0},
    )


class Proxy:
    """A proxy before a server: `requests` lists what passed, and the other attributes say what goes wrong.

    Attributes:
        latency: seconds before each answer.
        rate: bytes per second of each answer; 0: no limit.
        faults: what happens to the next requests: a status, "cut" for half of the body, "drop" for a
            connection that is closed, "hang" for no answer until the client has gone, "half" for one that is closed
            in the middle of what the client sends, "lost" for one that is closed once the server has answered.
        always: likewise, of all requests whose method and path, such as "GET /bucket/a", match its first part.
        once: likewise, of the first such request.
        each: what happens to the first request of each method and path.
        meanwhile: by the beginning of a method and path, what is called before the first such request is answered.
    """

    def __init__(self, port: int) -> None:
        self.latency, self.rate = 0.0, 0.0
        self.faults: list[int | str] = []
        self.always: tuple[str, int | str] | None = None
        self.once: tuple[str, int | str] | None = None
        self.each: int | str | None = None
        self.meanwhile: dict[str, Callable[[], object]] = {}
        self._seen: set[str] = set()
        self.requests: list[tuple[str, str]] = []
        self.lock = threading.Lock()
        proxy = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_GET(self):
                proxy.answer(self, port)

            do_HEAD = do_PUT = do_POST = do_DELETE = do_GET  # noqa: N815 - names that the library looks for

            def finish(self):
                super().finish()
                if connection := getattr(proxy._local, "connection", None):  # of this thread, which ends
                    connection.close()

            def log_message(self, *arguments):
                pass

        self._server = StoreServer(("127.0.0.1", 0), Handler)
        self._server.handle_error = lambda request, address: None  # a client that was killed
        self.port = self._server.server_address[1]
        self._local = threading.local()
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def store(self, prefix: str, bucket: str = BUCKET, **client) -> S3Store:
        """Return a store of obstore whose requests go through the proxy, and which does not repeat them itself."""
        return store_at(self.port, prefix, bucket, **client)

    def ranges(self, suffix: str = ".safetensors") -> list[tuple[str, str]]:
        """Return path and range of the requests for shards so far."""
        return [one for one in self.requests if one[0].endswith(suffix)]

    def answer(self, handler, port: int) -> None:
        """Answer one request of a client."""
        with self.lock:
            path = unquote(handler.path)  # clients encode different characters
            self.requests.append((path, handler.headers.get("Range", "")))
            request = f"{handler.command} {path}"
            fault = self._fault_of(request)
            called = [self.meanwhile.pop(begins) for begins in list(self.meanwhile) if request.startswith(begins)]
        for call in called:
            call()
        time.sleep(self.latency)
        if fault in ("drop", "hang", "half"):
            if fault == "hang":
                while handler.rfile.read1(1 << 16):  # ends when the client does
                    pass
            elif fault == "half":
                handler.rfile.read(int(handler.headers.get("Content-Length") or 0) // 2)
            handler.close_connection = True
        elif isinstance(fault, int):
            self._reply(handler, fault, {}, b"<Error><Code>Injected</Code></Error>")
        else:
            self._forward(handler, port, fault)

    def _fault_of(self, request: str) -> int | str | None:
        """Return what happens to a request."""
        if self.always and re.search(self.always[0], request):
            return self.always[1]
        if self.once and re.search(self.once[0], request):
            (_, fault), self.once = self.once, None
            return fault
        if self.faults:
            return self.faults.pop(0)
        if self.each is not None and request not in self._seen:
            self._seen.add(request)
            return self.each
        return None

    def _forward(self, handler, port: int, fault) -> None:
        connection = getattr(self._local, "connection", None) or http.client.HTTPConnection("127.0.0.1", port)
        self._local.connection = connection
        body = handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
        connection.request(handler.command, handler.path, body, dict(handler.headers))
        answer = connection.getresponse()
        data = answer.read()
        headers = {
            name: value
            for name, value in answer.getheaders()
            if name.lower() not in ("connection", "content-length", "transfer-encoding", "date", "server")
        }
        length = int(answer.getheader("Content-Length") or len(data))
        if fault != "lost":
            self._reply(handler, answer.status, headers, data[: len(data) // 2] if fault == "cut" else data, length)
        if fault in ("lost", "cut"):
            handler.close_connection = True

    def _reply(self, handler, status: int, headers, data: bytes, length: int | None = None) -> None:
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.send_header("Content-Length", str(len(data) if length is None else length))
        handler.end_headers()
        if self.rate:
            time.sleep(len(data) / self.rate)
        if handler.command != "HEAD":
            handler.wfile.write(data)

    def mend(self) -> None:
        """Let everything pass again, and forget what passed."""
        self.latency, self.rate, self.faults = 0.0, 0.0, []
        self.always = self.once = self.each = None
        self.meanwhile.clear()
        self._seen.clear()
        self.requests.clear()

    def close(self) -> None:
        """End the proxy."""
        self._server.shutdown()
        self._server.server_close()


class Store(NamedTuple):
    """A store of one kind, which the environment leads its addresses to.

    Attributes:
        scheme: how its addresses begin.
        server: what has its objects.
        proxy: what requests pass through.
    """

    scheme: str
    server: Server | CloudServer
    proxy: Proxy

    def url(self, prefix: str) -> str:
        """Return the address of a folder."""
        return f"{self.scheme}://{BUCKET}/{prefix}"


def disk_bytes(folder: Path, files: str = "*/*.safetensors") -> int:
    """Return the bytes that the mirror files of a cache take on the disk."""
    return sum(path.stat().st_blocks * 512 for path in folder.glob(files))
