"""Compiled programs, kept for the next command, which starts to train in two fifths of the time.

JAX asks its cache for a program by a digest of the program's text and of the compiler, its version and its flags. What
it gets is machine code, which runs as you. So the folder must be this user's own and closed to the writing of others;
in any other, nothing is read or kept. An entry is no pickle: compressed bytes of a message of XLA's, in which the
object code lies, and reading it unpickles nothing.

JAX's own cache of files writes them piece by piece, takes those that were damaged, and has no bound without a further
package. `Programs` takes its place behind the same two methods: a file is whole or absent, carries a digest, and the
one that was not used for longest goes first. Whatever fails here is silent, and the program is compiled as if nothing
had been kept: a result has the same bytes with a cache and without.
"""

import hashlib
import importlib
import os
import platform
import stat
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

import jax

from demosift.files import atomic_write, cache_folder, canonical, sweep
from demosift.types import InputError

SWITCH, OFF = "DEMOSIFT_COMPILED", ("off", "0", "no", "false")
FOLDER = "compiled"
LIMIT_BYTES = 1 << 28
OPTIONS = {
    "jax_persistent_cache_min_compile_time_secs": 0.05,  # what compiles sooner is hardly found sooner
    "jax_persistent_cache_min_entry_size_bytes": -1,
    "jax_persistent_cache_enable_xla_caches": "none",  # files that XLA would write beside ours, in ways of its own
}
DIGEST_BYTES = hashlib.sha256().digest_size


class Programs:
    """Bytes by their keys, in a folder of the user's own. JAX calls `get` and `put`, and names `_path` in its log."""

    def __init__(self, folder: Path, limit: int = LIMIT_BYTES) -> None:
        self._path, self.limit, self.here = folder, limit, machine()

    def get(self, key: str) -> bytes | None:
        path = self.place(key)
        try:
            handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
            with open(handle, "rb") as file:
                about = os.fstat(handle)
                if not stat.S_ISREG(about.st_mode) or about.st_uid != os.geteuid() or about.st_size > self.limit:
                    return None
                content = file.read()
        except OSError:
            return None
        digest, value = content[:DIGEST_BYTES], content[DIGEST_BYTES:]
        whole = digest == self.digest(key, value)
        with suppress(OSError):
            os.utime(path) if whole else path.unlink()  # what was used last goes last
        return value if whole else None

    def put(self, key: str, value: bytes) -> None:
        if len(value) + DIGEST_BYTES > self.limit or not is_private(self._path):
            return
        with suppress(OSError, InputError):  # of two processes that write the same, the second is refused
            with atomic_write(self.place(key)) as temporary:
                temporary.write_bytes(self.digest(key, value) + value)
            self.make_room()

    def make_room(self) -> None:
        sweep(self._path)
        kept = []
        for entry in os.scandir(self._path):
            with suppress(OSError):  # another process may remove it meanwhile
                about = entry.stat(follow_symlinks=False)
                kept.append((about.st_mtime_ns, entry.path, about.st_size))
        total = sum(size for _, _, size in kept)
        for _, path, size in sorted(kept):
            if total <= self.limit:
                return
            with suppress(OSError):
                os.unlink(path)
            total -= size

    def place(self, key: str) -> Path:
        return self._path / hashlib.sha256(f"{self.here} {key}".encode()).hexdigest()

    def digest(self, key: str, value: bytes) -> bytes:
        return hashlib.sha256(f"{self.here} {key}\n".encode() + value).digest()


def machine() -> str:
    """What compiled code may depend on and a key of JAX's need not: the processor, and how many threads there are. The
    folder may be shared by several machines.
    """
    told = {platform.machine(), platform.processor()}
    with suppress(OSError), open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
        told |= {line for line in lines if line.startswith(("model", "flags", "Features", "CPU"))}
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    asked = [os.environ.get(name) for name in ("NPROC", "PJRT_NPROC")]  # which the runtime reads
    return hashlib.sha256(canonical([sorted(told), cores, asked]).encode()).hexdigest()


def is_private(folder: Path) -> bool:
    """Whether only this user can write there. Its files are code that runs as this user."""
    try:
        about = os.lstat(folder)
    except OSError:
        return False
    shared = about.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return stat.S_ISDIR(about.st_mode) and about.st_uid == os.geteuid() and not shared


def given_folder() -> str | None:
    """That of JAX's cache, which a user may have set."""
    return getattr(jax.config, "jax_compilation_cache_dir", None)


def keep_programs() -> bool:
    """Let this process find compiled programs in the cache folder and keep new ones there.

    False where they are not kept: it is switched off, JAX was given a cache already, or the folder is not private.
    """
    if os.environ.get(SWITCH, "").lower() in OFF or given_folder():
        return False
    try:
        folder = cache_folder() / FOLDER
        folder.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)
    except (OSError, InputError):
        return False
    if not is_private(folder):
        return False
    # There is no public way to give JAX another cache. With a later JAX that has moved this, nothing is kept.
    try:
        compilation_cache: Any = importlib.import_module("jax._src.compilation_cache")
    except ImportError:
        return False
    if not hasattr(compilation_cache, "get_file_cache"):
        return False
    compilation_cache.get_file_cache = lambda path: (Programs(Path(path)), path)
    for name, value in OPTIONS.items():
        jax.config.update(name, value)
    jax.config.update("jax_compilation_cache_dir", str(folder))
    warnings.filterwarnings("ignore", "Error (reading|writing) persistent compilation cache entry")
    return True
