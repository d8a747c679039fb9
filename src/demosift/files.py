"""Files: writes that are whole or absent, JSON in one form, digests, and where a result was made.

Everything is made in a hidden folder beside its destination, flushed to the disk, and renamed: a reader, a crash or
Ctrl-C sees the old content or the new, never half of it. The hidden folder is locked: of two processes that write to
one place at once the second is refused, and what a killed one left is removed by the next.
"""

import errno
import fcntl
import hashlib
import json
import math
import os
import platform
import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from demosift.types import InputError


class Unusable(InputError):
    """A file is missing, damaged, or not what it should be. The message names the file."""


FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST, errno.ENAMETOOLONG, errno.ELOOP)
PARTIAL = ".partial"
OLD_PARTIAL = re.compile(r"\..+\.[0-9a-f]{8}\.partial(\.\w+)?")


@contextmanager
def atomic_write(path: str | os.PathLike[str], num_bytes: int = 0) -> Iterator[Path]:
    """Yields a temporary path of the same name; what is written there becomes `path` when the block succeeds.

    With `num_bytes`, a disk that cannot hold that much is reported before the block runs, for writers that do not
    survive a full disk: HDF5 crashes the process.
    """
    path = Path(path)
    if path.is_dir():
        raise InputError(f"{path}: is a folder, cannot write a file there")
    with _workshop(path) as temporary, system_errors_named(path):
        temporary.touch(exist_ok=False)
        mode = temporary.stat().st_mode
        _check_space(temporary, num_bytes)
        yield temporary
        temporary.chmod(mode)  # safetensors leaves its files private
        _sync(temporary)
        os.replace(temporary, path)
        _sync(path.parent)


@contextmanager
def atomic_folder(path: str | os.PathLike[str], num_bytes: int = 0) -> Iterator[Path]:
    """Yields a temporary folder; with its whole content it becomes `path` when the block succeeds.

    A folder that already holds something is refused before any work is done. `num_bytes` is as for `atomic_write`.
    """
    path = Path(path)
    if path.is_symlink():
        path = path.resolve()
    if path.exists() and not path.is_dir():
        raise InputError(f"{path}: is a file, cannot write a folder there")
    if path.is_dir() and any(path.iterdir()):
        raise InputError(f"{path}: the folder is not empty; choose another or remove it")
    with _workshop(path) as temporary, system_errors_named(path):
        _check_space(temporary, num_bytes)
        temporary.unlink(missing_ok=True)
        temporary.mkdir()
        yield temporary
        for folder, _, files in os.walk(temporary):
            for name in files:
                _sync(Path(folder, name))
            _sync(Path(folder))
        try:
            os.rename(temporary, path)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            raise InputError(f"{path}: something else was written there meanwhile; choose another folder") from error
        _sync(path.parent)


@contextmanager
def own_folder(path: str | os.PathLike[str]) -> Iterator[None]:
    """Make a folder and keep it to this process while the block runs; it is refused while another process has it.

    The lock is on the folder itself and goes when the process does. A new folder that stays empty is removed.
    """
    path = Path(path)
    if path.exists() and not path.is_dir():
        raise InputError(f"{path}: is a file, not a folder")
    is_new = not path.exists()
    with system_errors_named(path, FULL + _FORBIDDEN):
        handle = _lock_folder(path, path)
    try:
        yield
    finally:
        if is_new:
            with suppress(OSError):
                path.rmdir()
        os.close(handle)


@contextmanager
def _workshop(path: Path) -> Iterator[Path]:
    """A place to make what becomes `path`: under its name in a hidden folder beside it, kept to this process.

    What a killed process left there is removed first, and nothing is left there in the end.
    """
    if not path.name:
        raise InputError(f"{path}: has no name of its own, cannot write there")
    folder = path.with_name(f".{path.name}{PARTIAL}")
    with system_errors_named(path, FULL + _FORBIDDEN):
        handle = _lock_folder(folder, path)
    try:
        _remove(folder / path.name)
        yield folder / path.name
    finally:
        _remove(folder / path.name)
        with suppress(OSError):
            folder.rmdir()
        os.close(handle)


def _lock_folder(folder: Path, target: Path) -> int:
    """Make the folder unless it exists, and lock it; an error calls it `target`."""
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | (os.O_NOFOLLOW if folder != target else 0))
        except FileNotFoundError:
            continue  # whoever had it is done with it
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            raise InputError(f"{target}: another process is writing there; wait for it, or choose another") from None
        except OSError:
            pass  # a file system without locks
        if folder.exists() and os.path.samestat(os.fstat(handle), os.stat(folder)):
            return handle
        os.close(handle)  # locked too late, after it was renamed or removed


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def is_partial(path: Path) -> bool:
    """Whether this is what a killed process left of an atomic write, and not a user's file of a similar name.

    Earlier releases left files and folders with a random part in their names.
    """
    if path.is_symlink():
        return False
    if OLD_PARTIAL.fullmatch(path.name):
        return True
    name = path.name[1 : -len(PARTIAL)]
    is_ours = name and path.name == f".{name}{PARTIAL}" and path.is_dir()
    return bool(is_ours) and {each.name for each in path.iterdir()} <= {name}


def sweep(*folders: Path) -> None:
    """Remove what killed processes left in these folders, which must be this process's own (`own_folder`)."""
    for path in [path for folder in folders if folder.is_dir() for path in folder.iterdir()]:
        if is_partial(path):
            with suppress(InputError), own_folder(path) if path.is_dir() else nullcontext():
                _remove(path)


def write_json(path: str | os.PathLike[str], content: Any) -> None:
    """Sorted keys and a final newline, so that equal content means equal bytes. NaN is refused: JSON has none."""
    text = json.dumps(content, sort_keys=True, indent=2, allow_nan=False) + "\n"
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def canonical(value: Any) -> str:
    """The same text for equal JSON values, to hash and to compare."""
    return json.dumps(value, sort_keys=True, allow_nan=False, separators=(",", ":"))


def read_json(path: Path, where: str | None = None) -> Any:
    """The content of a JSON file, which messages call `where`."""
    where = where or str(path)
    return parse_json(read_text(path, where), where)


def read_text(path: Path, where: str, errors: str = "strict") -> str:
    try:
        return path.read_text(encoding="utf-8", errors=errors)
    except FileNotFoundError:
        raise Unusable(f"{where}: missing") from None
    except UnicodeDecodeError:
        raise Unusable(f"{where}: not text in UTF-8") from None
    except OSError as error:
        raise Unusable(f"{where}: not readable ({error.strerror})") from None


MOST_TOML = 16_384  # bytes; the time to parse hostile keys grows with the square


def write_toml(path: str | os.PathLike[str], content: Mapping[str, Any], comment: str) -> None:
    """Plain values and lists of them, without tables."""
    lines = [f"# {comment}", *(f"{name} = {toml_value(value)}" for name, value in content.items())]
    with atomic_write(path) as temporary:
        # A file name that is not UTF-8 becomes an escape that TOML refuses: to repeat the run, name the file again.
        temporary.write_text("\n".join(lines) + "\n", encoding="utf-8", errors="backslashreplace")


def toml_value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml_value, value))}]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f") if isinstance(value, str) else repr(value)


def read_toml(path: Path) -> dict[str, Any]:
    if path.exists() and not path.is_file():
        raise Unusable(f"{path}: not a file")
    if path.is_file() and path.stat().st_size > MOST_TOML:
        raise Unusable(f"{path}: longer than {MOST_TOML:,} bytes, so no configuration")
    try:
        return tomllib.loads(read_text(path, str(path)))
    except (ValueError, RecursionError) as error:
        raise Unusable(f"{path}: not TOML: {error}") from None


def parse_json(text: str, where: str) -> Any:
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        raise Unusable(f"{where}: not JSON, or cut short") from None


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


@contextmanager
def system_errors_named(path: Path, codes: tuple[int, ...] = FULL) -> Iterator[None]:
    """Turns system errors that a user can cause, such as a full disk, into one line that names the target."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        # h5py and safetensors report failed writes without errno, with the system's text inside their message.
        number = getattr(error, "errno", None)
        number = number or next((code for code in codes if os.strerror(code) in str(error)), None)
        if number not in codes:
            raise
        raise InputError(f"{path}: cannot write: {os.strerror(number)}") from error


def _check_space(path: Path, num_bytes: int) -> None:
    """Claims the bytes and gives them back: unlike asking for the free space, this respects quotas and size limits."""
    if num_bytes > 0 and hasattr(os, "posix_fallocate"):
        with path.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, num_bytes)
            file.truncate(0)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def json_line(row: Mapping[str, Any]) -> str:
    return json.dumps(plain(dict(row)), allow_nan=False) + "\n"


def plain(value: Any) -> Any:
    """NumPy to plain Python; what is not finite becomes null, since JSON has no NaN."""
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def digest(arrays: Mapping[str, np.ndarray]) -> str:
    """A fingerprint of named arrays: names, types, shapes and bytes."""
    sha = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        sha.update(f"{name} {array.dtype} {array.shape} ".encode())
        sha.update(array.tobytes())
    return sha.hexdigest()


def provenance() -> dict[str, Any]:
    """Versions, commit and hardware: what it takes to make the result again."""
    packages = ("demosift", "jax", "jaxlib", "optax", "numpy", "gymnasium", "mujoco")
    return {
        "versions": {"python": platform.python_version(), **{name: installed_version(name) for name in packages}},
        "commit": source_commit(),
        "hardware": {"machine": platform.machine(), "cores": os.cpu_count(), "system": platform.system()},
    }


def installed_version(package: str) -> str | None:
    try:
        return version(package)
    except ModuleNotFoundError:
        return None


def source_commit() -> str | None:
    """The commit of the source tree this package runs from; None where it was installed from a wheel.

    DEMOSIFT_COMMIT names it where the source is a copy without its repository.
    """

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(Path(__file__).resolve().parent), *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", "files.py")  # else some other repository encloses the installed package
        return git("rev-parse", "HEAD")
    except (OSError, subprocess.SubprocessError):
        return os.environ.get("DEMOSIFT_COMMIT") or None
