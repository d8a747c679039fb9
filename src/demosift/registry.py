"""What can be named: algorithms, scorers, formats and networks, ours and those of other packages.

A table says where ours are. Those of another package are found by its entry points, in the groups
`demosift.algorithms`, `demosift.scorers`, `demosift.formats` and `demosift.networks`, or are given to `register`. Each
is imported when it is asked for by name, so that one that does not work harms only those who use it.
"""

import pkgutil
import re
import warnings
from collections.abc import Iterator, Mapping, MutableMapping
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Generic, TypeVar

from demosift.errors import InputError

T = TypeVar("T")
ADDED_BY = {"about": "@demosift.algorithm above it", "__dataclass_fields__": "@dataclass above it"}


class Registry(MutableMapping[str, T], Generic[T]):
    """Things of one sort by their names: ours, those that were registered, then those of installed packages."""

    def __init__(
        self, what: str, parts: tuple[str, ...], ours: Mapping[str, str], also: Mapping[str, str] | None = None
    ) -> None:
        """`parts`: the attributes by which such a thing is recognised. `ours`: where each is, as `module:object`.
        `also`: other names by which people know one of ours.
        """
        self.what, self.parts, self.ours, self.also = what, parts, ours, also or {}
        self._known: dict[str, T] = {}

    @property
    def group(self) -> str:
        """The group of the entry points."""
        return f"demosift.{self.what}s"

    @cached_property
    def foreign(self) -> dict[str, EntryPoint]:
        """The entry points of other packages, by name, looked up once and not loaded. Our names are ours."""
        found: dict[str, EntryPoint] = {}
        for entry in sorted(entry_points(group=self.group), key=lambda entry: (entry.name, package_of(entry))):
            if not self.is_ours(entry.name) and found.setdefault(entry.name, entry).value != entry.value:
                packages = f"{package_of(found[entry.name])}, which is used, and of {package_of(entry)}"
                warnings.warn(f"the {self.what} {entry.name!r} is of {packages}", stacklevel=2)
        return found

    def is_ours(self, name: object) -> bool:
        return name in self.ours or name in self.also

    def own_name(self, name: str) -> str:
        """The name under which files and tables have it; the same, unless it is another name of one of ours."""
        return self.also.get(name, name)

    def __contains__(self, name: object) -> bool:
        return name in self._known or self.is_ours(name) or name in self.foreign

    def __iter__(self) -> Iterator[str]:
        yield from dict.fromkeys([*self.ours, *self._known, *self.foreign])

    def __len__(self) -> int:
        return len(list(iter(self)))

    def __getitem__(self, name: str) -> T:
        """Imports what it returns. KeyError: nobody has this name. InputError: it cannot be loaded."""
        name = self.own_name(name)
        if name not in self._known:
            thing = pkgutil.resolve_name(self.ours[name]) if name in self.ours else self.load(self.foreign[name])
            self._known[name] = thing
        return self._known[name]

    def __setitem__(self, name: str, thing: T) -> None:
        self._known[name] = thing

    def __delitem__(self, name: str) -> None:
        del self._known[name]

    def find(self, name: str) -> T:
        if name not in self:
            raise InputError(f"unknown {self.what} {name!r}; choose one of {', '.join(self)}")
        return self[name]

    def loaded(self) -> dict[str, T]:
        """All that can be loaded. Another package's that cannot is left out, with a warning."""
        found = {}
        for name in self:
            try:
                found[name] = self[name]
            except InputError as error:
                warnings.warn(str(error), stacklevel=2)
        return found

    def load(self, entry: EntryPoint) -> T:
        which = f"the package {package_of(entry)}: its {self.what} {entry.name!r}"
        try:
            thing = entry.load()
        except Exception as error:  # importing another package may raise anything
            said = " ".join(f"{type(error).__name__}: {error}".split())
            raise InputError(f"{which} cannot be loaded: {said}") from error
        if missing := self.missing(thing):
            raise InputError(f"{which} lacks {', '.join(missing)}")
        if thing.name != entry.name:
            raise InputError(f"{which} calls itself {thing.name!r}; the entry point must have the same name")
        return thing

    def missing(self, thing: Any) -> list[str]:
        """What a thing lacks to be one of these, in words."""
        return [ADDED_BY.get(part, part) for part in ("name", *self.parts) if not hasattr(thing, part)]

    def register(self, thing: Any) -> None:
        if not (isinstance(thing.name, str) and re.fullmatch(r"\w[\w.-]*", thing.name)):
            raise InputError(f"register: {thing.name!r} is not a name: use letters, digits, dots and hyphens")
        if self.is_ours(thing.name):
            raise InputError(f"register: the {self.what} {thing.name!r} is demosift's own; choose another name")
        self._known[thing.name] = thing


def package_of(entry: EntryPoint) -> str:
    return entry.value.partition(".")[0] if entry.dist is None else f"{entry.dist.name} {entry.dist.version}"


ALGORITHMS: Registry[Any] = Registry(
    "algorithm",
    ("init", "step", "policy", "weigh", "about"),
    {
        "bc": "demosift.algorithms.bc:BC",
        "nbcu": "demosift.algorithms.nbcu:NBCU",
        "wbcu": "demosift.algorithms.wbcu:WBCU",
        "wbcu-two-stage": "demosift.algorithms.wbcu_two_stage:WBCUTwoStage",
        "demodice": "demosift.algorithms.demodice:DemoDICE",
        "dwbc": "demosift.algorithms.dwbc:DWBC",
        "smodice": "demosift.algorithms.smodice:SMODICE",
        "lobsdice": "demosift.algorithms.lobsdice:LobsDICE",
        "sift": "demosift.sift.method:Sift",
    },
    also={"isw-bc": "wbcu"},
)
SCORERS: Registry[Any] = Registry(
    "scorer",
    ("fit", "work", "__dataclass_fields__"),
    {
        "contrast": "demosift.sift.scorers:ContrastScorer",
        "wbcu": "demosift.sift.scorers:WBCUScorer",
        "demodice": "demosift.sift.scorers:DemoDICEScorer",
        "dwbc": "demosift.sift.scorers:DWBCScorer",
        "neighbours": "demosift.sift.scorers:NeighbourScorer",
        "trees": "demosift.sift.scorers:TreeScorer",
    },
)
# In the order in which they are asked whether a source is theirs.
FORMATS: Registry[Any] = Registry(
    "format",
    ("reads", "parts"),
    {
        "minari": "demosift.data.formats.minari:FORMAT",
        "lerobot": "demosift.data.formats.lerobot:FORMAT",
        "npz": "demosift.data.formats.npz:FORMAT",
        "robomimic": "demosift.data.formats.robomimic:FORMAT",
        "hdf5": "demosift.data.formats.hdf5:FORMAT",
    },
)
NETWORKS: Registry[Any] = Registry(
    "network",
    ("init", "apply"),
    {"layer-norm": "demosift.learning.bodies:LAYER_NORM"},
)
REGISTRIES = (ALGORITHMS, SCORERS, FORMATS, NETWORKS)


def register(thing: T) -> T:
    """Make an algorithm, a scorer, a format or a network available by its name, in this process.

    An algorithm is a class under `@demosift.algorithm`, a scorer a dataclass with `work` and `fit`, a format a
    `demosift.Format`, a network a `demosift.Network`. An entry point of your package does the same for every process.
    """
    for registry in REGISTRIES:
        if not registry.missing(thing):
            registry.register(thing)
            return thing
    likely = min(REGISTRIES, key=lambda registry: len(registry.missing(thing)) / (1 + len(registry.parts)))
    raise InputError(
        f"register: {getattr(thing, '__name__', type(thing).__name__)} is no algorithm, scorer, format or network; "
        f"it comes nearest to a {likely.what}, and lacks {', '.join(likely.missing(thing))}"
    )
