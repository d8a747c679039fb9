"""A first look at an HDF5 file from outside, in a process of its own.

A damaged byte can send HDF5's library into an endless loop, or crash it. So a small process opens every object of the
file first, with a limit of time and memory; a file that it does not come back from is refused. The process is started
at the first file and kept for the next ones. It ends with the program, however that ends: its input closes, and in an
endless loop it runs out of processor time.
"""

import atexit
import os
import selectors
import subprocess
import sys
import threading
from functools import lru_cache
from pathlib import Path

from demosift.types import InputError

SECONDS = 4  # of processor time, and more for large files, which may have many objects
_PATIENCE = 15  # times as long by the clock, where the machine is busy
_BYTES_PER_SECOND = 10 << 20
_MEMORY = 1 << 31  # of address space; the libraries alone take a third

# What a reader does with an object, attributes included, short of reading its rows. The low-level functions take a
# third of the time.
_LOOK = """
import os, resource, sys
import numpy
from h5py import h5a, h5d, h5f, h5g, h5l, h5o

class Damage(Exception):
    pass

def look(name):
    seen, groups = set(), [h5o.open(h5f.open(name, h5f.ACC_RDONLY), b"/")]
    while groups:
        group = groups.pop()
        look_at(group)
        for key in group:
            if group.links.get_info(key).type != h5l.TYPE_HARD:
                continue
            place = h5o.get_info(group, key).addr
            if place not in seen:
                seen.add(place)
                found = h5o.open(group, key)
                if isinstance(found, h5g.GroupID):
                    groups.append(found)
                else:
                    look_at(found)

def look_at(found):
    for index in range(h5a.get_num_attrs(found)):
        attribute = h5a.open(found, index=index)
        try:
            attribute.read(numpy.empty(attribute.shape or (), attribute.dtype))
        except (OSError, RuntimeError, MemoryError):
            raise Damage
        except Exception:
            pass  # of a type that h5py does not know
    if isinstance(found, h5d.DatasetID):
        options = found.get_create_plist()
        found.shape, found.dtype, options.get_external_count(), found.get_storage_size()
        if options.get_layout() == h5d.CHUNKED:
            found.get_num_chunks()

resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
for line in sys.stdin.buffer:
    seconds, name = line.split()
    used = resource.getrusage(resource.RUSAGE_SELF)
    limit = int(used.ru_utime + used.ru_stime) + 1 + int(seconds)
    resource.setrlimit(resource.RLIMIT_CPU, (limit, resource.RLIM_INFINITY))
    answer = "done"
    try:
        look(bytes.fromhex(name.decode()))
    except Damage:
        answer = "damaged"  # and reading it might take any memory
    except Exception:
        pass  # reading it will say what is wrong
    print(answer, file=answers, flush=True)
"""


class _Looker:
    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self.lock = threading.Lock()

    def look(self, path: bytes, seconds: int) -> str:
        """What is wrong with this file, or nothing."""
        with self.lock:
            process = self.process if self.process and self.process.poll() is None else self.start()
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                process.stdin.write(b"%d %s\n" % (seconds, path.hex().encode()))
                process.stdin.flush()
                with selectors.DefaultSelector() as selector:
                    selector.register(process.stdout, selectors.EVENT_READ)
                    if selector.select(_PATIENCE * seconds) and (answer := process.stdout.readline()):
                        return "" if answer == b"done\n" else "an attribute cannot be read"
            except OSError:  # it ended before it was asked
                pass
            self.stop()
            return "HDF5 cannot read it in time"

    def start(self) -> "subprocess.Popen[bytes]":
        self.stop()
        code = _LOOK.replace("MEMORY", str(_MEMORY))
        # Nothing in the working folder is imported (-P); one thread, which needs little address space.
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-P", "-c", code]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            command, env=environment, start_new_session=True, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL
        )
        atexit.register(self.stop)
        return self.process

    def stop(self) -> None:
        process, self.process = self.process, None
        if process is not None:
            process.kill()
            process.communicate()


_looker = _Looker()


def look_first(path: Path) -> None:
    """Refuses a file that HDF5's library does not come back from. A file that did not change is looked at once."""
    found = path.stat()
    if wrong := _look(os.fsencode(path.absolute()), found.st_ino, found.st_mtime_ns, found.st_size):
        raise InputError(f"{path}: damaged HDF5 file: {wrong}")


@lru_cache(maxsize=4096)
def _look(path: bytes, number: int, changed: int, size: int) -> str:
    return _looker.look(path, SECONDS + size // _BYTES_PER_SECOND)
