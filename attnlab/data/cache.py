"""Files fetched or made once: where they live and how they get there whole and right or not at all."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import glob
import hashlib
import http.client
import os
import shutil
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

_TIMEOUT_SECONDS = 30.0
_CHUNK_BYTES = 1 << 16


class CorpusError(ValueError):
    """A corpus that was named rightly cannot be had; the message says the way out."""


def cache_directory() -> Path:
    """$ATTNLAB_CACHE, else $XDG_CACHE_HOME/attnlab, else ~/.cache/attnlab (it may not exist yet)."""
    if own := os.environ.get("ATTNLAB_CACHE"):
        return Path(own).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "attnlab"


def fetched(url: str, sha256: str, *, place: Path) -> Path:
    """`place`, once it holds the file of `url` with exactly this SHA-256 (hexadecimal).

    A file already there is checked and used without network. Otherwise it is downloaded beside its
    place, checked while it streams, and moved there in one step: another process, or a run stopped
    halfway, never sees part of a file.

    Raises:
      CorpusError: no network, server error, checksum mismatch, or the directory is not writable.
    """
    if place.exists():
        found = _sha256(place)
        if found != sha256:
            raise CorpusError(
                f"{place}: SHA-256 is {found}, not {sha256}: the file is damaged or another one; "
                f"delete it to download it again"
            )
        return place
    temporary = place.with_name(f"{place.name}.{uuid.uuid4().hex}.part")
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        file = temporary.open("xb")
    except OSError as error:
        raise CorpusError(
            f"cache directory {place.parent}: cannot be written ({error.strerror}); set ATTNLAB_CACHE "
            f"to a directory that can"
        ) from error
    try:
        with file:
            found = _download(url, file.write)
        if found != sha256:
            raise CorpusError(
                f"{url}: SHA-256 of the download is {found}, not {sha256}; nothing was kept. "
                f"Put the right file at {place} by hand"
            )
        os.replace(temporary, place)
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise CorpusError(
            f"{url}: download failed ({reason}); with no network, put the file at {place} "
            f"(SHA-256 {sha256})"
        ) from error
    finally:
        temporary.unlink(missing_ok=True)
    return place


@contextlib.contextmanager
def building(place: Path) -> Iterator[Path]:
    """A new directory beside `place`, which becomes `place` in one step when the block ends well.

    Whatever else ends it (an error, Ctrl-C, a full disk) removes the directory. One that a killed process left
    behind is removed by the next build of the same place. When another process has made `place` meanwhile, its
    directory stands and this one is dropped.

    Raises:
      CorpusError: the directory cannot be written, or the disk is full.
    """
    part = place.with_name(f".{place.name}.{uuid.uuid4().hex}.part")
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(place)
        with _lock(part.with_suffix(".lock")):
            try:
                part.mkdir()
                yield part
                for path in part.iterdir():
                    _sync(path)
                _rename(part, place)
            finally:
                shutil.rmtree(part, ignore_errors=True)
    except OSError as error:
        raise CorpusError(
            f"{place}: cannot be written ({error.strerror or error}); nothing was kept; make room there, or "
            f"take another directory (that of the cache is set by ATTNLAB_CACHE)"
        ) from error


def _rename(part: Path, place: Path) -> None:
    try:
        part.rename(place)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Held as long as this process builds and lives: whoever gets the lock knows that nobody does."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def _remove_abandoned(place: Path) -> None:
    """Removes what builds of `place` that were killed have left."""
    for path in place.parent.glob(f".{glob.escape(place.name)}.*.lock"):
        with contextlib.suppress(OSError), path.open() as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path.with_suffix(".part"), ignore_errors=True)
            path.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    """Has the bytes of a file on the disk before its new name is."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _download(url: str, write: Callable[[bytes], object]) -> str:
    """Stream `url` into `write`; returns the SHA-256 of what came."""
    digest = hashlib.sha256()
    with urllib.request.urlopen(url, timeout=_TIMEOUT_SECONDS) as response:
        while chunk := response.read(_CHUNK_BYTES):
            digest.update(chunk)
            write(chunk)
    return digest.hexdigest()


def _sha256(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise CorpusError(
            f"{path}: cannot be read ({error.strerror}); allowed: a readable file"
        ) from error
