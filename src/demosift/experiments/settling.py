"""How a program's end is recorded, whichever engine ran it: results, failures, or two halves to try instead."""

from collections.abc import Sequence
from typing import NamedTuple

from demosift.experiments.program import Outcome, Planned
from demosift.experiments.store import Store
from demosift.files import provenance
from demosift.results.run import Row


class Settled(NamedTuple):
    """How many cells finished and failed, whether the program ended, and the programs to try instead of it."""

    finished: int = 0
    failed: int = 0
    ended: bool = True
    halves: tuple[list[Planned], ...] = ()


def settle(program: Sequence[Planned], outcome: Outcome, store: Store, made: Row) -> Settled:
    """Write the results of a program that ended; one that was stopped keeps its checkpoint."""
    if not outcome.finished:
        return Settled(ended=False)
    failed = 0
    for member, planned in enumerate(program):
        failure = outcome.members[member].failure
        if failure is None:
            store.write_cell(result_of(planned, outcome, member, made))
        else:
            failed += 1
            store.write_failure(failure_of(planned, failure))
    store.program([each.id for each in program]).discard()
    return Settled(len(program) - failed, failed)


def settle_failure(program: list[Planned], reason: str, store: Store) -> Settled:
    """Cut a program that failed as a whole in two, each half with its part of the checkpoint.

    Repeated until the failing cell is alone, so that it stops no other and the others lose nothing.
    """
    under_way = store.program([each.id for each in program])
    if len(program) == 1:
        store.write_failure(failure_of(program[0], reason))
        under_way.discard()
        return Settled(failed=1)
    half = len(program) // 2
    halves = (program[:half], program[half:])
    under_way.split(half, *(store.program([each.id for each in part]) for part in halves))
    return Settled(halves=halves)


def result_of(planned: Planned, outcome: Outcome, member: int, made: Row) -> Row:
    """The content of a cell's result file."""
    environment = planned.data.environment
    return {
        "id": planned.id,
        "config": planned.cell.config(),
        "data": dict(planned.description),
        "recipe": dict(planned.data.recipe),
        "environment": {"id": environment.id, "kwargs": dict(environment.kwargs)},
        "reference": planned.data.reference,
        "evaluations": outcome.members[member].evaluations,
        "wall_seconds": round(outcome.wall_seconds, 1),
        "trained_together": len(outcome.members),
        **made,
    }


def failure_of(planned: Planned, reason: str) -> Row:
    return {
        "id": planned.id,
        "config": planned.cell.config(),
        "data": dict(planned.description),
        "failure": reason,
        **provenance(),
    }
