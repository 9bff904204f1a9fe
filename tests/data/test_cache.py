import hashlib
import http.server
import socket
import threading
from pathlib import Path

import pytest

from attnlab.data import cache, corpora

TEXT = b"To be, or not to be, that is the question.\n" * 50
SHA256 = hashlib.sha256(TEXT).hexdigest()


class _Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.requests.append(self.path)
        self.send_response(404 if self.path == "/absent" else 200)
        self.send_header("Content-Length", str(len(TEXT)))
        self.end_headers()
        self.wfile.write(TEXT[:100] if self.path == "/cut-short" else TEXT)

    def log_message(self, *args):
        pass


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    with http.server.HTTPServer(("127.0.0.1", 0), _Handler) as loopback:
        loopback.requests = []
        thread = threading.Thread(target=loopback.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield loopback
        loopback.shutdown()
        thread.join()


@pytest.fixture
def no_network(monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("the network was touched")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def _url(server, path):
    return f"http://127.0.0.1:{server.server_address[1]}{path}"


@pytest.mark.network
def test_a_download_arrives_whole_and_is_fetched_once(server, tmp_path):
    place = tmp_path / "new" / "deep" / "text.txt"
    for _ in range(2):
        assert cache.fetched(_url(server, "/text"), SHA256, place=place) == place
    assert place.read_bytes() == TEXT
    assert server.requests == ["/text"]
    assert list(place.parent.iterdir()) == [place]


@pytest.mark.network
@pytest.mark.parametrize(
    ("path", "sha256", "words"),
    [
        ("/text", "0" * 64, "SHA-256 of the download is"),
        ("/cut-short", SHA256, "SHA-256 of the download is"),
        ("/absent", SHA256, "download failed .*Not Found"),
    ],
)
def test_a_bad_download_is_refused_and_leaves_nothing(server, tmp_path, path, sha256, words):
    place = tmp_path / "text.txt"
    with pytest.raises(cache.CorpusError, match=words) as error:
        cache.fetched(_url(server, path), sha256, place=place)
    assert str(place) in str(error.value)
    assert "\n" not in str(error.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.network
def test_no_server_is_one_line_with_the_way_out(tmp_path, monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # bound but not listening: connections are refused
        url = f"http://127.0.0.1:{closed.getsockname()[1]}/text"
        with pytest.raises(cache.CorpusError, match="with no network, put the file at"):
            cache.fetched(url, SHA256, place=tmp_path / "text.txt")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.network
def test_tinyshakespeare_is_downloaded_into_the_cache_then_needs_no_network(
    server, tmp_path, monkeypatch
):
    monkeypatch.setattr(corpora, "TINYSHAKESPEARE_URL", _url(server, "/text"))
    monkeypatch.setattr(corpora, "TINYSHAKESPEARE_SHA256", SHA256)
    monkeypatch.setenv("ATTNLAB_CACHE", str(tmp_path))
    assert corpora.load("tinyshakespeare").sha256 == SHA256
    assert corpora.load("tinyshakespeare", cache_dir=tmp_path).sha256 == SHA256
    assert server.requests == ["/text"]


def test_a_cached_file_is_used_without_network(tmp_path, monkeypatch, no_network):
    monkeypatch.setattr(corpora, "TINYSHAKESPEARE_SHA256", SHA256)
    (tmp_path / "tinyshakespeare.txt").write_bytes(TEXT)
    corpus = corpora.load("tinyshakespeare", cache_dir=tmp_path)
    assert corpus.sha256 == SHA256


def test_a_damaged_cached_file_is_refused_not_used(tmp_path, no_network):
    place = tmp_path / "tinyshakespeare.txt"
    place.write_bytes(TEXT)
    with pytest.raises(cache.CorpusError, match="delete it to download it again"):
        corpora.load("tinyshakespeare", cache_dir=tmp_path)
    assert place.read_bytes() == TEXT


def test_an_unwritable_cache_names_the_variable(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(cache.CorpusError, match="set ATTNLAB_CACHE"):
        cache.fetched("http://127.0.0.1:9/", SHA256, place=tmp_path / "file" / "text.txt")


@pytest.mark.parametrize(
    ("own", "xdg", "expected"),
    [
        ("/own", "/xdg", Path("/own")),
        (None, "/xdg", Path("/xdg/attnlab")),
        ("", "", Path.home() / ".cache" / "attnlab"),
        ("~/mine", None, Path.home() / "mine"),
    ],
)
def test_cache_directory_order(monkeypatch, own, xdg, expected):
    for variable, value in (("ATTNLAB_CACHE", own), ("XDG_CACHE_HOME", xdg)):
        if value is None:
            monkeypatch.delenv(variable, raising=False)
        else:
            monkeypatch.setenv(variable, value)
    assert cache.cache_directory() == expected
