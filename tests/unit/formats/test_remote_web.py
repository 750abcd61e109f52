"""Web servers without ETags, without ranges, or that refuse: no bytes are mixed, and errors come at once."""

import http.server
import os
import re
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import memload

ROWS = 400


@pytest.fixture
def web(tmp_path):
    """A set on a web server: `dated` says whether it states Last-Modified, `status` how shards are answered instead."""
    folder = tmp_path / "set"
    memload.write(folder, {"x": torch.ones(ROWS, 1024, dtype=torch.uint8)}, shard_bytes="200kB", progress=False)
    at = SimpleNamespace(folder=folder, dated=True, status=0, asked=[])

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            path, asked = Path(f"{tmp_path}{self.path}"), self.headers.get("Range")
            data, status = path.read_bytes(), 206 if asked else 200
            if asked and at.status:
                at.asked.append(self.path)
                data, status, asked = data if at.status == 200 else b"why", at.status, None
            begin, end = map(int, re.findall(r"\d+", asked)) if asked else (0, len(data) - 1)
            self.send_response(status)
            if asked:
                self.send_header("Content-Range", f"bytes {begin}-{end}/{len(data)}")
            if at.dated:
                self.send_header("Last-Modified", self.date_time_string(path.stat().st_mtime))
            self.send_header("Content-Length", str(end + 1 - begin))
            self.end_headers()
            self.wfile.write(data[begin : end + 1])

        def log_message(self, *arguments):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.handle_error = lambda request, address: None  # a client that has its answer before the body
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        at.url = f"http://127.0.0.1:{server.server_address[1]}/set"
        yield at
        server.shutdown()


def replace(web, seconds=60):
    """Replace the first shard by one of the same size; return how many rows it has."""
    first = sorted(web.folder.glob("shard-*"))[0]
    rows, modified = len(memload.open(first)), first.stat().st_mtime + seconds
    first.write_bytes(bytes(first.stat().st_size))
    os.utime(first, (modified, modified))
    return rows


@pytest.mark.parametrize("seconds", [60, -60])
def test_a_shard_without_an_etag_that_was_replaced_is_told_by_its_date(web, tmp_path, seconds):
    options = {"cache": tmp_path / "cache", "cache_bytes": "16MB"}  # blocks are smaller than a shard
    ds = memload.open(web.url, **options)
    assert ds[0]["x"].min() == 1
    rows = replace(web, seconds)
    for one in (ds, memload.open(web.url, **options)):
        with pytest.raises(memload.ShardReadError, match=r"shard-00000.safetensors: the object was replaced"):
            one[rows - 1]
        assert one[ROWS - 1]["x"].min() == 1


def test_a_folder_of_a_server_without_dates_is_taken_up_again(web, tmp_path):
    """Nothing tells one object from another of the same size there, and its blocks stay."""
    web.dated, options = False, {"cache": tmp_path / "cache", "cache_bytes": "16MB"}
    assert memload.open(web.url, **options)[0]["x"].min() == 1
    replace(web)
    assert memload.open(web.url, **options)[0]["x"].min() == 1


def test_a_server_without_ranges_is_told_at_once(web):
    ds = memload.open(web.url)
    web.status = 200
    with pytest.raises(memload.ShardReadError, match=r"shard-00000.*: this server does not answer requests for ranges"):
        ds[0]
    assert len(web.asked) == 1
