"""Which cells train together: those that share shapes become members of one program."""

from collections.abc import Callable, Hashable, Iterable, Sequence

import jax

from demosift.experiments.cells import Cell, DataKey
from demosift.experiments.prepare import Prepared
from demosift.experiments.program import Planned
from demosift.experiments.store import Store

MEMBERS_ON_DEVICE = 240  # networks: on an H200 they train faster than four programs of 60, and compile once

SMALL_ROWS = 2**17 - 1  # above, data within eight times as many rows share a program


def identify(
    cells: Iterable[Cell],
    prepare: Callable[[DataKey], Prepared],
    store: Store,
    on_data: Callable[[str], None] = lambda what: None,
) -> list[Planned]:
    """The cells with their data and ids; cells of the same seed and task share their data.

    An earlier release did not hash where episodes end. A cell that the store knows by such an id keeps it. `on_data`
    is called with a few words before data is made.
    """
    prepared: dict[DataKey, Prepared] = {}
    planned = []
    for cell in cells:
        if cell.data not in prepared:
            on_data(f"{cell.data.task}, seed {cell.data.seed}")
            prepared[cell.data] = prepare(cell.data)
        description = prepared[cell.data].description
        earlier = {key: value for key, value in description.items() if key != "ends_sha256"}
        if store.knows(cell.id(earlier), earlier):
            description = earlier
        planned.append(Planned(cell, cell.id(description), prepared[cell.data], description))
    return planned


def plan(planned: Sequence[Planned], store: Store, max_members: int | None = None) -> list[list[Planned]]:
    """The programs that are left to run.

    Unfinished programs stay as they are, so that they continue bit for bit; one that ended while it wrote its cells is
    continued whole, too. The other cells are grouped by shape, and on a GPU several environments and tasks share a
    program of up to `max_members`.
    """
    on_cpu = jax.default_backend() == "cpu"
    done = {each.id: each for each in planned if store.finished(each.id)}
    todo = {each.id: each for each in planned if each.id not in done}
    programs = []
    for ids in store.unfinished():
        if any(cell_id in todo for cell_id in ids) and all(cell_id in todo or cell_id in done for cell_id in ids):
            programs.append([todo.pop(cell_id, None) or done[cell_id] for cell_id in ids])
    groups: dict[Hashable, list[Planned]] = {}
    for each in todo.values():
        cloner = each.cell.algorithm.cloner
        # What padding does to a body that is no perceptron is not known.
        padded = not on_cpu and (cloner is None or cloner.body() is None)
        size = () if on_cpu else size_class(each)
        groups.setdefault((shape_of(each.cell, across_tasks=padded), size), []).append(each)
    for group in groups.values():
        limit = max_members or (len(todo) if on_cpu else MEMBERS_ON_DEVICE // group[0].cell.ensemble)
        programs += pack(group, max(1, limit))
    return programs


def shape_of(cell: Cell, across_tasks: bool) -> Hashable:
    """What the cells of one program must have in common. Numeric settings are leaves and may differ."""
    task = None if across_tasks else (cell.data.env, cell.data.recipe)
    structure = jax.tree.structure(cell.algorithm)
    return (structure, cell.iterations, cell.schedule, cell.precision, cell.ensemble, cell.data.expert_actions, task)


def size_class(planned: Planned) -> int:
    """Data of one program are padded to the longest: only small ones go with any other, and a million rows do not."""
    needed = planned.data.needed(planned.cell.algorithm.needs_supplementary)
    rows = len(needed.expert) + len(needed.supplementary or ())
    return max(SMALL_ROWS, rows).bit_length() // 3


def pack(group: Sequence[Planned], limit: int) -> list[list[Planned]]:
    """Pack whole tasks together up to the limit; one that exceeds it alone is cut."""
    programs: list[list[Planned]] = []
    for task in dict.fromkeys((each.cell.data.env, each.cell.data.recipe) for each in group):
        own = [each for each in group if (each.cell.data.env, each.cell.data.recipe) == task]
        if programs and len(programs[-1]) + len(own) <= limit:
            programs[-1] += own
        else:
            programs += [own[start : start + limit] for start in range(0, len(own), limit)]
    return programs
