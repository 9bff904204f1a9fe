import hashlib
import http.server
import signal
import socket
import subprocess
import sys
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


# Directories that are built


def test_a_directory_appears_whole(tmp_path):
    place = tmp_path / "deep" / "made"
    with cache.building(place) as part:
        (part / "a").write_text("a")
        assert not place.exists()
    assert (place / "a").read_text() == "a"
    assert list(place.parent.iterdir()) == [place]


@pytest.mark.parametrize("error", [ValueError("bad text"), KeyboardInterrupt()])
def test_whatever_goes_wrong_leaves_no_directory(tmp_path, error):
    def build():
        with cache.building(tmp_path / "made") as part:
            (part / "a").write_text("a")
            raise error

    with pytest.raises(type(error)):
        build()
    assert list(tmp_path.iterdir()) == []


def test_the_first_of_two_builders_wins_and_both_are_served(tmp_path):
    place = tmp_path / "made"
    with cache.building(place) as mine:
        (mine / "a").write_text("second")
        with cache.building(place) as other:
            (other / "a").write_text("first")
    assert (place / "a").read_text() == "first"
    assert list(tmp_path.iterdir()) == [place]


def test_a_file_in_the_way_is_one_line(tmp_path):
    (tmp_path / "made").write_text("in the way")
    building = cache.building(tmp_path / "made")
    building.__enter__()
    with pytest.raises(cache.CorpusError, match=r"made: cannot be written .*nothing was kept"):
        building.__exit__(None, None, None)
    assert [p.name for p in tmp_path.iterdir()] == ["made"]


BUILDER = """
import resource, signal, sys, time
from pathlib import Path
from attnlab.data import cache
# A job that a shell started in the background would ignore it.
signal.signal(signal.SIGINT, signal.default_int_handler)
if sys.argv[2] == "full":
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))  # as on a disk with that much room
try:
    with cache.building(Path(sys.argv[1])) as part, (part / "a").open("wb") as file:
        file.write(b"x" * 50_000)
        file.flush()
        print("building", flush=True)
        if sys.argv[2] == "full":
            file.write(b"x" * 100_000)
            file.flush()
        time.sleep(60)
except cache.CorpusError as error:
    print(error)
    sys.exit(2)
"""


def builder(place, how):
    process = subprocess.Popen(
        [sys.executable, "-c", BUILDER, str(place), how],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    assert process.stdout.readline() == "building\n"
    return process


def test_ctrl_c_leaves_nothing(tmp_path):
    process = builder(tmp_path / "made", "wait")
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode != 0
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_leaves_nothing(tmp_path):
    process = builder(tmp_path / "made", "full")
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "cannot be written (File too large); nothing was kept" in out
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_process_leaves_is_never_used_and_removed_by_the_next(tmp_path):
    place = tmp_path / "made"
    killed, alive = builder(place, "wait"), builder(place, "wait")
    killed.kill()
    killed.communicate(timeout=60)
    assert not place.exists()
    assert len(list(tmp_path.glob(".*.part"))) == 2
    with cache.building(place) as part:
        assert len(list(tmp_path.glob(".*.part"))) == 2, "that of the living one and this one"
        (part / "a").write_text("a")
    alive.send_signal(signal.SIGINT)
    alive.communicate(timeout=60)
    assert list(tmp_path.iterdir()) == [place]
    assert (place / "a").read_text() == "a"
