"""Places where logs are kept: a directory, or an object store (S3 and what speaks like it, GCS, Azure)."""

import asyncio
import os
import re
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from tessera.kernel.errors import Full, StartupError, Transient

BATCH = 1000
DISK_FREE_BYTES_MIN = 1 << 29
# So much of its disk a directory leaves free, whatever it is told to write: the ledger may lie on the same one.
RETRIES_SECONDS = 20
_KEY = re.compile(r"[^/]+/([^/]+)/([^/]+)([-/])([0-9]+)\3([0-9]+)\.log")


@dataclass(frozen=True, slots=True)
class StoredLog:
    """Log by its key; bytes, and when it was written in milliseconds since the Unix epoch."""

    key: str
    bytes: int
    written_ms: int


class LogStore(Protocol):
    """Texts under keys `SHARD/TENANT/JOB-ATTEMPT-RANK.log`. Every call raises Transient while the store is away."""

    async def put(self, key: str, text: bytes) -> None:
        """Store a text whole or not at all. Raises Full where there is no room."""

    async def get(self, key: str) -> bytes | None:
        """Text under the key; None where there is none."""

    def batches(self, folder: str) -> AsyncIterator[list[StoredLog]]:
        """Objects below a folder, at most 1,000 at a time, in no order."""

    async def remove(self, keys: Sequence[str]) -> None:
        """Remove what is there of these."""


class LogName(NamedTuple):
    """Name of the log of one pod."""

    tenant: str
    job_id: str
    attempt: int
    rank: int


def log_key(shard: str, name: LogName) -> str:
    """Key of the log of one pod: one folder per tenant, whatever its jobs do."""
    return f"{shard}/{name.tenant}/{name.job_id}-{name.attempt}-{name.rank}.log"


def older_log_key(shard: str, name: LogName) -> str:
    """Key under which versions up to 0.4 stored it."""
    return f"{shard}/{name.tenant}/{name.job_id}/{name.attempt}/{name.rank}.log"


def read_log_key(key: str) -> LogName | None:
    """Name in a key of either form; None for what others put there."""
    found = _KEY.fullmatch(key)
    return LogName(found[1], found[2], int(found[4]), int(found[5])) if found else None


def open_store(place: str, options: Mapping[str, str]) -> LogStore | None:
    """Store at a path or URL; None for "". Raises StartupError where nothing can be kept."""
    if not place:
        return None
    return ObjectLogStore(place, options) if "://" in place else DirectoryLogStore(Path(place))


class DirectoryLogStore:
    """Files in a directory, such as a volume that all gateways share; one thread writes and removes them."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._writer = ThreadPoolExecutor(1, "log-writer")
        try:
            root.mkdir(parents=True, exist_ok=True, mode=0o700)
            tempfile.TemporaryFile(dir=root).close()
        except OSError as error:
            reason = error.strerror
            raise StartupError(
                f"setting logs_store: {root} cannot be written ({reason}); mount a volume there, or leave it empty"
            ) from error

    async def put(self, key: str, text: bytes) -> None:
        """A rename makes the file appear whole."""
        await self._call(self._write, self._root / key, text, by=self._writer)

    async def get(self, key: str) -> bytes | None:
        """One read of the file."""
        found: bytes | None = await self._call(self._read, self._root / key)
        return found

    async def batches(self, folder: str) -> AsyncIterator[list[StoredLog]]:
        """A walk in another thread, batch by batch."""
        found = self._walk(folder)
        while batch := await self._call(lambda: list(islice(found, BATCH))):
            yield batch

    async def remove(self, keys: Sequence[str]) -> None:
        """Remove files, and folders that are empty then."""
        await self._call(self._unlink_all, [self._root / key for key in keys], by=self._writer)

    async def _call(self, call: Any, *arguments: Any, by: Executor | None = None) -> Any:
        try:
            return await asyncio.get_running_loop().run_in_executor(by, call, *arguments)
        except OSError as error:
            raise Transient(f"log directory {self._root}: {error.strerror or error}") from error

    def _write(self, path: Path, text: bytes) -> None:
        if shutil.disk_usage(self._root).free - len(text) < DISK_FREE_BYTES_MIN:
            raise Full(f"log directory {self._root}: its disk has less than {DISK_FREE_BYTES_MIN >> 20} MiB left")
        for _ in range(3):  # whoever removes old logs may take an empty folder away in between
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            try:
                descriptor, fresh = tempfile.mkstemp(dir=path.parent, suffix=".new")
                break
            except FileNotFoundError:
                continue
        else:
            raise FileNotFoundError(path.parent)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(text)
            os.replace(fresh, path)
        except BaseException:
            Path(fresh).unlink(missing_ok=True)
            raise

    def _read(self, path: Path) -> bytes | None:
        try:
            return path.read_bytes()
        except FileNotFoundError:
            return None

    def _walk(self, folder: str) -> Iterator[StoredLog]:
        for where, _, names in os.walk(self._root / folder):
            for name in names:
                path = Path(where, name)
                try:
                    status = path.stat()
                except FileNotFoundError:
                    continue
                key = path.relative_to(self._root).as_posix()
                yield StoredLog(key, status.st_size, int(status.st_mtime * 1000))

    def _unlink_all(self, paths: Sequence[Path]) -> None:
        for path in paths:
            self._unlink(path)

    def _unlink(self, path: Path) -> None:
        path.unlink(missing_ok=True)
        for parent in path.parents:
            if parent == self._root:
                return
            try:
                parent.rmdir()
            except OSError:  # something else is in it
                return


class ObjectLogStore:
    """Objects in a bucket, by obstore; credentials come from the environment or the pod's identity."""

    def __init__(self, url: str, options: Mapping[str, str]) -> None:
        try:
            import obstore
            from obstore.exceptions import BaseError
            from obstore.store import from_url
        except ImportError as error:
            raise StartupError(
                "setting logs_store: an object store needs the package obstore; install tessera-scheduler[logs]"
            ) from error
        self._api, self._error, self._url = obstore, BaseError, url
        # Retries of the library are short: whoever collects tries again with a back-off of its own.
        retry: Any = {"max_retries": 2, "retry_timeout": timedelta(seconds=RETRIES_SECONDS)}
        config: Any = dict(options)
        client: Any = {"allow_http": options.get("endpoint", "").startswith("http://")}
        try:
            self._store = from_url(url, config=config, client_options=client, retry_config=retry)
        except BaseException as error:  # what the library panics about is no Exception
            if not isinstance(error, BaseError | ValueError) and type(error).__name__ != "PanicException":
                raise
            reason = str(error).splitlines()[0] or type(error).__name__
            raise StartupError(f"setting logs_store: {url}: {reason}; mend the URL, or logs_store_options") from error

    async def put(self, key: str, text: bytes) -> None:
        """One PUT."""
        await self._call(self._api.put_async(self._store, key, text))

    async def get(self, key: str) -> bytes | None:
        """One GET."""
        try:
            found = await self._call(self._api.get_async(self._store, key))
        except FileNotFoundError:
            return None
        return bytes(await self._call(found.bytes_async()))

    async def batches(self, folder: str) -> AsyncIterator[list[StoredLog]]:
        """Pages of a LIST."""
        try:
            async for page in self._api.list(self._store, f"{folder}/", chunk_size=BATCH):
                yield [
                    StoredLog(found["path"], found["size"], int(found["last_modified"].timestamp() * 1000))
                    for found in page
                ]
        except (self._error, OSError) as error:
            raise self._away(error) from error

    async def remove(self, keys: Sequence[str]) -> None:
        """One DELETE of many where the store has that."""
        if keys:
            try:
                await self._call(self._api.delete_async(self._store, list(keys)))
            except FileNotFoundError:
                return

    async def _call(self, call: Any) -> Any:
        try:
            return await call
        except FileNotFoundError:
            raise
        except (self._error, OSError) as error:
            raise self._away(error) from error

    def _away(self, error: Exception) -> Transient:
        return Transient(f"log store {self._url}: {str(error).splitlines()[0][:200]}")
