"""What an algorithm is: a frozen dataclass whose fields are its hyper-parameters and whose methods are its maths."""

import dataclasses
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, TypeVar, dataclass_transform, get_type_hints

import jax
from jaxtyping import Array, Float, PRNGKeyArray

from demosift.learning.about import About, Work, cloning_work
from demosift.learning.networks import Policy
from demosift.ranges import BATCH, LAYERS, NOT_NEGATIVE, NUMBER, POSITIVE, SEED, SHARE, STEPS, UNIT, WIDTH, Range, whole
from demosift.registry import ALGORITHMS, Registry
from demosift.types import Demonstrations, InputError, Transitions

if TYPE_CHECKING:
    from demosift.learning.cloning import Cloner
    from demosift.learning.prepared import Kept
    from demosift.learning.stages import Stages

Metrics = dict[str, Float[Array, ""]]
State = Any  # each algorithm's own named tuple
A = TypeVar("A")


class Batch(NamedTuple):
    """Rows of each set, drawn independently and uniformly with replacement.

    The compiler drops what an algorithm ignores.
    """

    expert: Transitions
    union: Transitions
    supplementary: Transitions
    initial: Transitions  # rows that start an episode
    uniform: Float[Array, "2 rows 1"]  # two numbers in [0, 1) for each row, for whatever needs chance
    weight: Float[Array, "rows"] | None = None  # weights of the union's rows, where they come with the data
    weighted: Transitions | None = None  # rows of the union, drawn in proportion to those weights


class Method(Protocol):
    """What a class under `@algorithm` must have.

    `iteration` counts from 0 and is shared by all members, so a `cond` on it stays a branch under vmap.
    """

    name: ClassVar[str]  # on the command line and in files

    @property
    def batch_size(self) -> int:
        """Rows of each set in a batch."""
        ...

    @property
    def hidden(self) -> tuple[int, ...]:
        """The widths of the hidden layers."""
        ...

    def init(self, batch: Batch, key: PRNGKeyArray) -> State:
        """The initial networks, in sizes that fit the batch."""
        ...

    def step(self, state: State, batch: Batch, iteration: Array, key: PRNGKeyArray) -> tuple[State, Metrics]:
        """One iteration: the new networks, and numbers to log."""
        ...

    def policy(self, state: State) -> Policy:
        """The network that acts."""
        ...

    def weigh(self, state: State, rows: Transitions) -> Float[Array, "rows"]:
        """How much each of these rows is worth imitating, by the current networks."""
        ...


class Algorithm(Method, Protocol):
    """The contract: a method with what it may also say. `@algorithm` adds the rest, with these defaults."""

    about: ClassVar[About]  # the name alone
    needs_supplementary: ClassVar[bool]  # true
    takes_weights: ClassVar[bool]  # false: weights that come with the data do not replace its own
    needs_expert_actions: ClassVar[bool]  # true; false: an expert of whom only observations are known will do
    takes_bad: ClassVar[bool]  # false: data that are known to be bad tell it nothing

    @property
    def cloner(self) -> "Cloner | None":
        """How its policy is cloned, where the cloner that methods share does it. None."""
        ...

    @property
    def policy_from(self) -> int:
        """The iteration from which on it trains its policy, unless weights come with the data. 0."""
        ...

    def check(self) -> None:
        """Refuse settings that cannot be, before anything is written. Refuses none."""
        ...

    def check_data(self, data: Demonstrations) -> None:
        """Refuse data from which it cannot learn, before anything is written. Refuses none."""
        ...

    def prepare(self, data: Demonstrations, folder: Path | None) -> Demonstrations:
        """The data with what it needs beside it, which may be kept in the folder. The data as it is."""
        ...

    def prepare_in_stages(self, data: Demonstrations, kept: "Kept") -> "Stages[Demonstrations]":
        """The same, as work that yields what can be done for many datasets at once. `prepare`, in one go."""
        ...

    def work(self) -> list[Work]:
        """The matrix products that one iteration needs, network by network. Those of cloning."""
        ...


REGISTRY: Registry[type[Algorithm]] = ALGORITHMS
"""Every algorithm that can be named on the command line, in a grid or in a run's config."""


def facts() -> dict[str, About]:
    """How every registered algorithm is shown. The report is given this, since it does not import the algorithms."""
    return {name: cls.about for name, cls in REGISTRY.loaded().items()}


def make_algorithm(name: str, settings: Mapping[str, Any] | None = None) -> Algorithm:
    """The registered algorithm with these settings. Unknown names and settings are refused."""
    cls, settings = REGISTRY.find(name), settings or {}
    known = [field.name for field in setting_fields(cls)]
    unknown = sorted(set(settings) - set(known))
    if unknown:
        raise InputError(f"{name} has no setting {unknown[0]!r}; it has {', '.join(sorted(known))}")
    given = {key: tuple(value) if isinstance(value, list) else value for key, value in settings.items()}
    for field in dataclasses.fields(cls):  # type: ignore[arg-type]
        if dataclasses.is_dataclass(field.type):
            own = {part.name: given.pop(part.name) for part in dataclasses.fields(field.type) if part.name in given}
            if own:
                given[field.name] = dataclasses.replace(field.default, **own)  # type: ignore[type-var]
    made = cls(**given)
    check_settings(made)
    return made


def check_expert_actions(method: Algorithm | type[Algorithm], known: bool) -> None:
    """Refuse a method that needs the expert's actions where they are not known."""
    if method.needs_expert_actions and not known:
        others = [name for name, cls in REGISTRY.loaded().items() if not cls.needs_expert_actions]
        raise InputError(f"{method.name} needs the expert's actions; {', '.join(others) or 'others'} do not")


RANGES = {  # of the settings that methods share; another has the range in its field's metadata, or any
    "alpha": NOT_NEGATIVE,
    "average": UNIT,
    "batch_size": BATCH,
    "beta": NOT_NEGATIVE,
    "critic_decay": NOT_NEGATIVE,
    "critic_learning_rate": NOT_NEGATIVE,
    "decay": NOT_NEGATIVE,
    "discount": UNIT,
    "discriminator_every": STEPS,
    "discriminator_iterations": STEPS,
    "discriminator_learning_rate": NOT_NEGATIVE,
    "eta": POSITIVE,
    "expectile": SHARE,
    "gradient_penalty": NOT_NEGATIVE,
    "hidden": WIDTH,
    "horizon": SEED,
    "learning_rate": NOT_NEGATIVE,
    "log_std_floor": Range(-20, 2),
    "nu_penalty": NOT_NEGATIVE,
    "target_rate": SHARE,
    "temperature": NOT_NEGATIVE,
    "threshold": NOT_NEGATIVE,
    "weight_decay": NOT_NEGATIVE,
}


def range_of(field: dataclasses.Field) -> Range | None:
    """The numbers that a setting may have; None where it is no number."""
    hints = {field.type, *typing.get_args(field.type)}
    if not hints & {int, float, "int", "float"}:
        return None
    any_number = NUMBER if hints & {float, "float"} else whole(-(2**31), 2**31 - 1)
    return field.metadata.get("range") or RANGES.get(field.name) or any_number


def check_settings(setting: Algorithm) -> None:
    """Refuse numbers that make no sense, such as a batch of no rows."""
    groups = [value for value in vars(setting).values() if dataclasses.is_dataclass(value)]
    for owner in (setting, *groups):
        for field in dataclasses.fields(owner):  # type: ignore[arg-type]
            value, allowed = getattr(owner, field.name), range_of(field)
            if isinstance(value, tuple):
                LAYERS.check(f"{setting.name}: {field.name}: the number of layers", len(value))
            if allowed is not None and value is not None:
                allowed.check(f"{setting.name}: {field.name}", *(value if isinstance(value, tuple) else [value]))


def check_length(setting: Algorithm, iterations: int, weighted: bool = False) -> None:
    """Refuse so few iterations that a method with two stages never comes to its policy."""
    if iterations <= setting.policy_from and not (weighted and setting.takes_weights):
        raise InputError(
            f"{setting.name}: {iterations} iterations train no policy: its discriminator has the first "
            f"{setting.policy_from} (--discriminator-iterations)"
        )


def setting_fields(cls: type) -> list[dataclasses.Field]:
    """The hyper-parameters, with those of a nested group (how the policy is cloned) among the others."""
    found = []
    for field in dataclasses.fields(cls):
        found += dataclasses.fields(field.type) if dataclasses.is_dataclass(field.type) else [field]
    return found


def settings_by_name(setting: Algorithm) -> dict[str, Any]:
    """The value of every hyper-parameter that has a flag."""
    groups = [value for value in vars(setting).values() if dataclasses.is_dataclass(value)]
    values = {name: value for part in (setting, *groups) for name, value in vars(part).items()}
    return {
        field.name: values[field.name] for field in setting_fields(type(setting)) if field.metadata.get("flag", True)
    }


def number_fields(cls: type) -> list[str]:
    """The hyper-parameters in which members of one program may differ: the algorithm's own, annotated `float`.

    Not those of `prepare` (`before_training`), which members that share their data share as well.
    """
    mine = dataclasses.fields(cls)
    return [field.name for field in mine if field.type is float and field.metadata.get("members", True)]


def before_training(default: float, allowed: Range | None = None) -> Any:
    """A number of which `prepare` makes use: one for all members of a program, like what is prepared."""
    return dataclasses.field(default=default, metadata={"members": False, "range": allowed})


def member_fields(cls: type) -> list[str]:
    """The same, with those that a nested group marks with `members` among them."""
    marked = [field.name for field in setting_fields(cls) if field.metadata.get("members", False)]
    return [*number_fields(cls), *marked]


def describe(setting: Method) -> dict[str, Any]:
    """The algorithm's name and hyper-parameters, as plain JSON values that `make_algorithm` takes.

    A nested group is told only where it differs from the method's own settings, or from what the first release did,
    which knew no such group: so the settings, and with them the ids of results, stay what they were.
    """
    told: dict[str, Any] = {"algorithm": setting.name}
    for field in dataclasses.fields(setting):  # type: ignore[arg-type]
        value = getattr(setting, field.name)
        if dataclasses.is_dataclass(value):
            bases = (type(value)(), field.default)
            parts = dataclasses.asdict(value).items()  # type: ignore
            told |= {k: v for k, v in parts if any(v != getattr(base, k) for base in bases)}
        else:
            told[field.name] = list(value) if isinstance(value, tuple) else value
    return told


def _prepare_in_one_go(self: Algorithm, data: Demonstrations, kept: "Kept") -> "Stages[Demonstrations]":
    yield from ()
    return self.prepare(data, None)


@dataclass_transform(frozen_default=True)
def algorithm(cls: type[A]) -> type[A]:
    """Make a class of hyper-parameters a frozen dataclass and a pytree, and add the defaults of the contract.

    Float fields become leaves, so members can differ in them inside one program; everything else shapes the program.
    """
    cls = dataclasses.dataclass(frozen=True)(cls)  # type: ignore[assignment]
    if any(isinstance(field.type, str) for field in dataclasses.fields(cls)):  # type: ignore[arg-type]
        hints = get_type_hints(cls)  # of a module with `from __future__ import annotations`
        for field in dataclasses.fields(cls):  # type: ignore[arg-type]
            field.type = hints[field.name]
    groups = [field.name for field in dataclasses.fields(cls) if dataclasses.is_dataclass(field.type)]  # type: ignore[arg-type]
    leaves = [*number_fields(cls), *groups]  # a group may be a tree with numbers of its own
    static = [field.name for field in dataclasses.fields(cls) if field.name not in leaves]  # type: ignore[arg-type]
    defaults = {
        "about": About(getattr(cls, "name", cls.__name__)),
        "needs_supplementary": True,
        "takes_weights": False,
        "needs_expert_actions": True,
        "takes_bad": False,
        "cloner": None,
        "policy_from": 0,
        "check": lambda self: None,
        "check_data": lambda self, data: None,
        "prepare": lambda self, data, folder: data,
        "prepare_in_stages": _prepare_in_one_go,
        "work": lambda self: [cloning_work(self.batch_size, self.hidden)],
    }
    for name, default in defaults.items():
        if not hasattr(cls, name):
            setattr(cls, name, default)

    # Not `register_dataclass`: its trees compare equal whatever the class. `jit` finds programs by hash and equality,
    # so it could run BC's program for NBCU. Here the class is part of what is compared.
    def flatten(self: A) -> tuple[list[Any], tuple[Any, ...]]:
        return [getattr(self, name) for name in leaves], (cls, *(getattr(self, name) for name in static))

    def unflatten(auxiliary: tuple[Any, ...], values: Any) -> A:
        return cls(**dict(zip(static, auxiliary[1:], strict=True)), **dict(zip(leaves, values, strict=True)))

    jax.tree_util.register_pytree_node(cls, flatten, unflatten)
    return cls
