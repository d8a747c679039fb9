"""Files: writes that are whole or absent, what a stranger's file may do, JSON in one form, digests, and where a result
was made.

Everything is made in a hidden folder beside its destination, flushed to the disk, and renamed: a reader, a crash or
Ctrl-C sees the old content or the new, never half of it. The hidden folder is locked: of two processes that write to
one place at once the second is refused, and what a killed one left is removed by the next.

A file may come from a stranger. It is opened only if it is a regular file (`check_regular`, `open_regular`), a name in
it becomes a path only through `below`, a link in its folder must not lead out of that (`check_links`), and its JSON is
read by `read_json` or `parse_json`, which know what JSON may hold, and compared with the schema that stands beside its
writer (`mismatch`).
"""

import errno
import fcntl
import hashlib
import itertools
import json
import math
import os
import platform
import re
import shutil
import stat
import subprocess
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from importlib.metadata import version
from io import BufferedReader
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

TEXT_BYTES = 1 << 28  # of a file of lines, such as metrics
JSON_BYTES = 1 << 25  # of one JSON value, which takes some twenty times as much memory
_JSON_DEPTH = 64
_MOST_HOLES = 1 << 30  # bytes of a file that may have been skipped, without a second look
_LONGEST_INTEGER = 100  # digits; a longer one is damage, and too large for a float beyond 308

_IRREGULAR = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a named pipe", stat.S_IFSOCK: "a socket"}


def check_regular(path: str | os.PathLike[str], where: str | None = None) -> None:
    """Refuses what is there but is not a regular file: to read a pipe may wait for ever, a device may never end."""
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):  # absent, or not a path at all: opening it will say so
        return
    if not stat.S_ISREG(mode):
        raise Unusable(f"{where or os.fspath(path)}: is {_IRREGULAR.get(stat.S_IFMT(mode), 'a device')}, not a file")


def open_regular(path: str | os.PathLike[str], where: str | None = None, follow: bool = True) -> BufferedReader:
    """A regular file, open for reading; without `follow`, a symbolic link is refused too. Raises OSError otherwise."""
    check_regular(path, where)
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | (0 if follow else getattr(os, "O_NOFOLLOW", 0))
    try:
        handle = os.open(path, flags)
    except ValueError as error:  # a NUL in its name
        raise Unusable(f"{where or os.fspath(path)!r}: not the name of a file") from error
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise Unusable(f"{where or os.fspath(path)}: is a link to another file; store the file itself") from error
        raise
    if not stat.S_ISREG(os.fstat(handle).st_mode):  # exchanged since it was looked at
        os.close(handle)
        raise Unusable(f"{where or os.fspath(path)}: not a regular file")
    return open(handle, "rb")


def digest_file(path: Path) -> bytes:
    """A fingerprint of a regular file's bytes. One that is almost all holes is refused: to read them takes hours."""
    with open_regular(path) as file:
        size, stored = os.fstat(file.fileno()).st_size, _bytes_stored(file.fileno())
        if size > _MOST_HOLES and size > 10 * stored:
            raise Unusable(f"{path}: claims {size:,} bytes, of which {stored:,} were ever written")
        return hashlib.file_digest(file, "sha256").digest()


def _bytes_stored(handle: int) -> int:
    """Those that are not in holes, where the file system knows."""
    if not hasattr(os, "SEEK_DATA"):
        return os.fstat(handle).st_size
    end = stored = 0
    try:
        while True:
            start = os.lseek(handle, end, os.SEEK_DATA)
            end = os.lseek(handle, start, os.SEEK_HOLE)
            stored += end - start
    except OSError:  # only holes are left, or nothing
        os.lseek(handle, 0, os.SEEK_SET)
        return stored


def copy_regular(source: Path, target: Path) -> None:
    """Copies a regular file that is not a link, and makes the folders that the copy needs."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with open_regular(source, follow=False) as old, target.open("xb") as new:
        shutil.copyfileobj(old, new, 1 << 20)


def below(folder: Path, name: str) -> Path:
    """The path of a name that a file chose. It stays below the folder: no root, no `..`, and no link out of it."""
    path = folder
    for part in name.split("/"):
        if part in ("", ".", "..") or "\0" in part or len(part.encode("utf-8", "replace")) > 255:
            raise Unusable(f"{folder}: {name[:80]!r}: not a name of a file below this folder")
        path = path / part
        if path.is_symlink():
            _check_link(folder, path)
    return path


def check_links(folder: Path, *places: Path) -> None:
    """Refuses a link at or below these places of a folder that leads out of it. The folder itself may be one."""
    for place in places:
        inside = (Path(home, name) for home, *names in os.walk(place) for name in itertools.chain(*names))
        for path in itertools.chain([place], inside):
            if path.is_symlink():
                _check_link(folder, path)


def _check_link(folder: Path, link: Path) -> None:
    """A link may lead to a file of its folder, or to `blobs` of the cache of Hugging Face that the folder lies in."""
    home = folder.resolve()
    homes = (home, home.parent.parent / "blobs") if home.parent.name == "snapshots" else (home,)
    try:
        target = link.resolve()
    except (OSError, RuntimeError):  # it leads to itself
        target = None
    if target is None or target.is_dir() or not any(target.is_relative_to(each) for each in homes):
        raise Unusable(f"{link}: is a link to another place; store the files themselves")


def refuse_links(folder: Path) -> None:
    """For folders whose files are copied: a link would put what it points to into the copy."""
    for parent, folders, files in os.walk(folder):
        for name in (*folders, *files):
            if Path(parent, name).is_symlink():
                raise Unusable(f"{Path(parent, name)}: is a link to another place; store the files themselves")


def check_apart(out: str | os.PathLike[str], *inputs: str | os.PathLike[str]) -> None:
    """Refuses to replace what is read, and to write into a folder of it."""
    place = Path(os.path.realpath(out))
    for each in inputs:
        own = Path(os.path.realpath(each))
        if place == own or own in place.parents:
            raise InputError(f"{os.fspath(out)}: {os.fspath(each)} is what is read; choose another place to write to")


@contextmanager
def atomic_write(path: str | os.PathLike[str], num_bytes: int = 0) -> Iterator[Path]:
    """Yields a temporary path of the same name; what is written there becomes `path` when the block succeeds.

    With `num_bytes`, a disk that cannot hold that much is reported before the block runs, for writers that do not
    survive a full disk: HDF5 crashes the process.
    """
    path = Path(path)
    if path.is_dir():
        raise InputError(f"{path}: is a folder, cannot write a file there")
    check_regular(path)
    if path.is_symlink() and os.readlink(path).startswith("/proc/"):  # /dev/stdout, which would be replaced
        raise InputError(f"{path}: is a stream, cannot write a file there")
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
        path = Path(os.path.realpath(path))  # may still be one, of a loop
    if path.is_symlink() or (path.exists() and not path.is_dir()):
        raise InputError(
            f"{path}: is a {'loop of links' if path.is_symlink() else 'file'}, cannot write a folder there"
        )
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
    with _new_folders(path):
        with system_errors_named(path, FULL + _FORBIDDEN):
            handle = _lock_folder(path, path)
        try:
            yield
        finally:
            os.close(handle)


@contextmanager
def reserved(path: str | os.PathLike[str]) -> Iterator[None]:
    """Keep a place to this process before the work that leads to its atomic write: of two commands that write to one
    place at once, the second is refused when it begins.
    """
    with _workshop(Path(path)) as place:
        _reserved.add(place.absolute())
        try:
            yield
        finally:
            _reserved.discard(place.absolute())


_reserved: set[Path] = set()  # by this process


@contextmanager
def _workshop(path: Path) -> Iterator[Path]:
    """A place to make what becomes `path`: under its name in a hidden folder beside it, kept to this process.

    What a killed process left there is removed first, and nothing is left there in the end.
    """
    if path.name in ("", ".."):
        raise InputError(f"{path}: has no name of its own, cannot write there")
    folder = path.with_name(f".{path.name}{PARTIAL}")
    try:
        place = (folder / path.name).absolute()
    except FileNotFoundError:
        raise InputError(f"{path}: cannot write: the working folder was removed") from None
    if place in _reserved:
        yield folder / path.name
        return
    with _new_folders(folder):
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


@contextmanager
def _new_folders(path: Path) -> Iterator[None]:
    """A folder that is not there yet, and those above it, are removed again if the block leaves them empty."""
    new = [each for each in (path, *path.parents) if not os.path.lexists(each)]
    try:
        yield
    finally:
        for each in new:
            with suppress(OSError):
                each.rmdir()


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
    text = to_json(content, sort_keys=True, indent=2) + "\n"
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def to_json(content: Any, **options: Any) -> str:
    """JSON that `parse_json` reads. The name of a file need not be UTF-8: the other bytes of it are spelled out."""
    text = json.dumps(content, allow_nan=False, **options)
    return text if "\\ud" not in text else json.dumps(_spelled_out(content), allow_nan=False, **options)


def _spelled_out(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, Mapping):
        return {_spelled_out(key): _spelled_out(item) for key, item in value.items()}
    return [_spelled_out(item) for item in value] if isinstance(value, list | tuple) else value


def canonical(value: Any) -> str:
    """The same text for equal JSON values, to hash and to compare."""
    return json.dumps(value, sort_keys=True, allow_nan=False, separators=(",", ":"))


def read_json(path: Path, where: str | None = None) -> Any:
    """The content of a JSON file, which messages call `where`."""
    where = where or str(path)
    return parse_json(read_text(path, where, num_bytes=JSON_BYTES), where)


def read_text(path: Path, where: str, errors: str = "strict", num_bytes: int = TEXT_BYTES) -> str:
    try:
        with open_regular(path, where) as file:
            content = file.read(num_bytes + 1)
        if len(content) > num_bytes:
            raise Unusable(f"{where}: larger than {num_bytes >> 20} MiB")
        return content.decode("utf-8", errors)
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


def parse_json(text: Any, where: str, infinite: bool = False) -> Any:
    """The value of a JSON text from outside, which can be written again, compared and hashed.

    Python's reader also takes NaN, infinity, keys that come twice, half characters, integers of any length, and
    nesting that later exhausts the stack. All of them are refused, but for infinities where these are what the text is
    about. `text` may be anything that was found where a text belongs.
    """
    try:
        if not isinstance(text, str | bytes) or len(text) > JSON_BYTES:
            raise ValueError("not text, or too much of it")
        value = json.loads(
            text.decode("utf-8") if isinstance(text, bytes) else text,
            parse_constant=float if infinite else _refuse_constant,
            parse_int=_parse_int,
            parse_float=_parse_float,
            object_pairs_hook=_parse_object,
        )
        _check_json(value, _JSON_DEPTH)
    except (json.JSONDecodeError, RecursionError):
        raise Unusable(f"{where}: not JSON, or cut short") from None
    except ValueError as error:
        reason = "half a character" if isinstance(error, UnicodeError) else error
        raise Unusable(f"{where}: not JSON, or cut short ({reason})") from None
    return value


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _parse_int(digits: str) -> int:
    if len(digits) > _LONGEST_INTEGER:
        raise ValueError("an integer that long is damage")
    return int(digits)


def _parse_float(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError("a number is not finite")
    return value


def _parse_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key comes twice")
    return found


def _check_json(value: Any, depth: int) -> None:
    """Half characters, which no file can hold, and nesting."""
    if isinstance(value, str):
        value.encode("utf-8")
    elif isinstance(value, dict | list):
        if depth == 0:
            raise ValueError("nested too deeply")
        for item in (*value, *value.values()) if isinstance(value, dict) else value:
            if isinstance(item, str | dict | list):
                _check_json(item, depth - 1)


def mismatch(value: Any, schema: Any, place: str = "") -> str | None:
    """Where a JSON value first differs from its schema, as `members.0.seed`; "" for the whole, None if nowhere.

    A schema is a type, a function that says yes or no, None, a dictionary of keys (`key?` may be absent), `[schema]`
    for a list of such, `{str: schema}` for any keys, or a tuple of alternatives.
    """
    if isinstance(schema, tuple):
        found = [mismatch(value, each, place) for each in schema]
        return None if None in found else found[-1]
    if isinstance(schema, list):
        items = enumerate(value) if isinstance(value, list) else None
        pairs = None if items is None else [(item, schema[0], str(index)) for index, item in items]
    elif isinstance(schema, dict):
        pairs = None
        if isinstance(value, dict) and str in schema:
            pairs = [(item, schema[str], key) for key, item in value.items()]
        elif isinstance(value, dict):
            pairs = [
                (value.get(key.removesuffix("?")), each, key.removesuffix("?"))
                for key, each in schema.items()
                if not key.endswith("?") or key[:-1] in value
            ]
    else:
        good = value is None if schema is None else type(value) is schema if isinstance(schema, type) else schema(value)
        return None if good else place
    if pairs is None:
        return place
    inner = (mismatch(item, each, f"{place}.{name}" if place else name) for item, each, name in pairs)
    return next((found for found in inner if found is not None), None)


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
    return to_json(plain(dict(row))) + "\n"


def plain(value: Any) -> Any:
    """NumPy to plain Python; what is not finite becomes null, since JSON has no NaN."""
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def expanded(path: str) -> Path:
    """The path, with the home folder in place of `~`."""
    try:
        return Path(path).expanduser()
    except RuntimeError:  # no HOME and nobody of that name
        raise InputError(f"{path}: whose home folder is not known; write the path in full") from None


def cache_folder() -> Path:
    """DEMOSIFT_CACHE, or `demosift` where the system keeps what can be made again."""
    own = os.environ.get("DEMOSIFT_CACHE")
    return Path(own) if own else Path(os.environ.get("XDG_CACHE_HOME") or expanded("~/.cache"), "demosift")


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
