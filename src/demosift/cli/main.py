"""The command line: `demosift VERB ...`.

Every verb prints something a person can read, or with `--json` one JSON object. Bad input gives one line on stderr and
exit code 2; Ctrl-C gives 130. The flags of an algorithm are the fields of its dataclass; several values make several
members.
"""

import argparse
import dataclasses
import errno
import json
import os
import signal
import sys
import threading
import typing
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

from demosift.cli import verbs
from demosift.types import InputError


class Parser(argparse.ArgumentParser):
    """argparse, but an error is one line that says where to look."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (try {self.prog} --help)\n")


def main(arguments: Sequence[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    try:
        with insistent_interrupts():
            return answer(arguments)
    except KeyboardInterrupt:
        return fail("interrupted", 130)


def answer(arguments: list[str]) -> int:
    try:
        options = make_parser(arguments).parse_args(arguments)
        result, text = options.run(options)
        print(json.dumps(result, sort_keys=True) if options.json else text)
        return options.exit_code(result)
    except InputError as error:
        return fail(str(error), 2)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS):
            raise
        return fail(f"{error.filename or 'output'}: {error.strerror}", 2)


@contextmanager
def insistent_interrupts() -> Iterator[None]:
    """Ctrl-C that cannot get lost.

    Python drops an exception that is raised while it happens to run a callback of its garbage collector, and JAX
    installs such a callback. So the signal is sent again every two seconds until it has been heard.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    heard = threading.Event()

    def again() -> None:
        while not heard.wait(2.0):
            os.kill(os.getpid(), signal.SIGINT)

    def interrupt(*_: object) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        threading.Thread(target=again, daemon=True).start()
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        heard.set()
        signal.signal(signal.SIGINT, before)


def fail(message: str, code: int) -> int:
    print(f"demosift: {' '.join(message.split())}", file=sys.stderr)
    return code


def make_parser(arguments: Sequence[str]) -> Parser:
    parser = Parser(prog="demosift", description="Offline imitation learning with a supplementary dataset.")
    subparsers = parser.add_subparsers(dest="verb", metavar="VERB", required=True, parser_class=Parser)

    def verb(name: str, run: Callable[[argparse.Namespace], verbs.Answer], about: str) -> Parser:
        sub = subparsers.add_parser(name, help=about, description=about)
        sub.add_argument("--json", action="store_true", help="print one JSON object")
        sub.set_defaults(run=run, exit_code=lambda result: 0)
        return sub

    sub = verb("demo", verbs.run_demo, "BC, NBCU and WBCU on halfcheetah/noisy-expert: a table and a page")
    sub.add_argument("--out", default="demo", help="folder for the runs and report.html (default: demo)")
    sub.add_argument("--seeds", type=positive, default=5, help="members per method (default: 5)")
    sub.add_argument("--iterations", type=positive, help="per method (default: what takes about five minutes)")

    sub = verb("collect", verbs.run_collect, "train SAC: an expert, a medium policy, the replay and the curve")
    sub.add_argument("env", nargs="+", help="hopper, walker2d, halfcheetah, ant or a Gymnasium id; all train together")
    sub.add_argument("--out", required=True, help="folder to write; with several environments, a folder each in it")
    sub.add_argument("--steps", type=positive, default=1_000_000, help="environment steps per agent (default: 1000000)")
    sub.add_argument("--seed", type=int, default=0, help="the first seed (default: 0)")
    sub.add_argument("--seeds", type=positive, default=1, help="agents per environment; the best is kept (default: 1)")
    sub.add_argument("--evaluate-every", type=positive, default=10_000, help="steps (default: 10000)")
    sub.add_argument("--episodes", type=positive, default=10, help="per evaluation (default: 10)")
    sub.add_argument(
        "--discount", type=float, nargs="+", default=[0.99], help="several make more agents (default: 0.99)"
    )
    about = "per action dimension; several make more agents, ENV=VALUE those of one environment (default: -1)"
    sub.add_argument("--target-entropy", nargs="+", default=["-1"], metavar="VALUE", help=about)
    sub.add_argument("--resume", action="store_true", help="continue from the folder's checkpoint")
    sub.add_argument("--keep-checkpoint", action="store_true", help="keep what a later, longer run would resume from")
    sub.add_argument("--time-limit", type=float, help="checkpoint and stop after this many seconds")

    sub = verb("record", verbs.run_record, "roll a policy out and write what it did")
    add_policy(sub)
    sub.add_argument("--out", required=True, help="the file to write (.hdf5), or minari:ID")
    sub.add_argument("--episodes", type=positive, default=10, help="how many (default: 10)")
    sub.add_argument("--seed", type=int, default=0, help="of the episodes (default: 0)")

    sub = verb("task", verbs.run_task, "write a task's expert.hdf5 and supplementary.hdf5")
    sub.add_argument("task", help="ENV/noisy-expert, ENV/full-replay, ENV/medium-expert or ENV/random-expert")
    sub.add_argument("--out", required=True, help="folder to write")
    sub.add_argument("--seed", type=int, default=0, help="of the draw (default: 0)")
    add_recipe(sub)

    train = verb("train", verbs.run_train, "train a policy")
    if arguments[:1] == ["train"]:  # the algorithms' fields are the flags, and knowing them takes importing JAX
        add_algorithms(train)

    sub = verb("evaluate", verbs.run_evaluate, "returns and normalised scores of a policy, member by member")
    add_policy(sub)
    sub.add_argument("--episodes", type=positive, default=10, help="per member (default: 10)")
    sub.add_argument("--seed", type=int, default=0, help="of the episodes (default: 0)")

    sub = verb("score", verbs.run_score, "how much each sample of a pile is worth imitating, by files alone")
    sub.add_argument("--expert", required=True, help="the expert's data: a file, a folder or minari:ID")
    sub.add_argument("--supplementary", required=True, help="the other data")
    sub.add_argument("--out", required=True, help="folder to write: scores and report.html")
    sub.add_argument("--scorer", default="contrast", metavar="NAME", help="docs/sift.md has them (default: contrast)")
    sub.add_argument("--members", type=positive, default=3, help="independent answers, for the spread (default: 3)")
    sub.add_argument("--folds", type=positive, default=5, help="parts that are left out in turn (default: 5)")
    sub.add_argument("--seed", type=int, default=0, help="default: 0")
    sub.add_argument("--threshold", type=float, default=0.5, help="weight of a kept sample (default: 0.5)")
    outside = ["check", "clip", "rescale"]
    sub.add_argument("--actions", choices=outside, default=outside[0], help="what to do with those outside [-1, 1]")

    sub = verb("filter", verbs.run_filter, "the part of a dataset that its scores advise to keep")
    sub.add_argument("data", help="what was scored: a file, a folder or minari:ID")
    sub.add_argument("--scores", required=True, metavar="DIR", help="what score wrote")
    sub.add_argument("--out", required=True, help="of the same format, or another by its prefix, such as minari:ID")
    sub.add_argument("--threshold", type=float, help="keep rows that weigh this much (default: the scores' own)")
    sub.add_argument("--top", type=float, metavar="SHARE", help="keep this share of the rows")
    sub.add_argument("--episodes", type=float, metavar="N", help="keep the N best episodes; below 1, a share of them")
    sub.add_argument("--filter-key", metavar="NAME", help="robomimic: write a copy with this filter key instead")
    sub.add_argument("--weights", action="store_true", help="write kept episodes and a weight per frame instead")

    sub = verb("export", verbs.run_export, "a policy as an ONNX file, checked against the original")
    add_policy(sub)
    sub.add_argument("--out", required=True, help="the file to write (.onnx)")
    sub.add_argument("--data", nargs="+", help="files to check it on (default: those it was trained on)")

    sub = verb("reproduce", verbs.run_reproduce, "the paper's tables and figures: run or continue a grid, then report")
    presets = "noisy-expert, full-replay, gradient-penalty, coverage, sac-curves or all"
    sub.add_argument("what", metavar="WHAT", help=presets)
    sub.add_argument("--out", required=True, help="folder of the results; a grid found there is continued")
    add_grid(sub)

    sub = verb(
        "theory", verbs.run_theory, "the paper's claims, each checked by computation; exits with 1 if one is refuted"
    )
    sub.add_argument("--out", required=True, help="folder to write: index.html, theory.json, figures/")
    sub.add_argument("--seed", type=int, default=0, help="of the random instances (default: 0)")
    sub.add_argument("--scale", type=float, default=1.0, help="times the usual number of instances (default: 1)")
    sub.add_argument("--claims", nargs="+", metavar="NAME", default=[], help="only these (default: all)")
    sub.add_argument("--processes", type=positive, default=2, help="to share the claims among (default: 2)")
    sub.set_defaults(exit_code=lambda result: 1 if result["refuted"] else 0)

    sub = verb("report", verbs.run_report, "the tables, figures and page of the results or runs in a folder")
    sub.add_argument("folder", help="a folder with runs in it, or one that reproduce or score wrote")

    sub = verb("bench", verbs.run_bench, "speed, as fractions of this machine's limit; or how good the scorers are")
    what = ["speed", "scores", "scale"]
    sub.add_argument("what", nargs="?", choices=what, default=what[0], help="default: speed")
    sub.add_argument("--measures", nargs="+", metavar="NAME", help="scores: noisy-expert, haystack, full-replay")
    sub.add_argument("--scorers", nargs="+", metavar="NAME", help="scores: default: all")
    sub.add_argument("--envs", nargs="+", metavar="ENV", help="scores: default: all four")
    sub.add_argument("--seeds", type=positive, default=3, help="scores: draws of each task (default: 3)")
    sub.add_argument("--replay", metavar="DIR", help="scores: holds what collect wrote for each environment")
    about = "scores, scale: results go there, tables beside it; scores already there are not measured again"
    sub.add_argument("--out", metavar="FILE.json", help=about)
    sub.add_argument("--rows", type=positive, nargs="+", help="scale: sizes of the pile (default: 100k, 1M, 20M)")
    sub.add_argument("--members", type=positive, nargs="+", default=[1, 5, 20], help="default: 1 5 20")
    sub.add_argument("--algorithms", nargs="+", help="default: all")
    sub.add_argument("--seconds", type=float, default=2.0, help="to measure each for (default: 2)")
    add_precision(sub)
    sub.add_argument("--collect", action="store_true", help="also measure SAC's collecting loop")
    return parser


def add_policy(sub: Parser) -> None:
    sub.add_argument("policy", help="a run folder, a .safetensors file, or expert, medium or random with --env")
    sub.add_argument("--env", help="the environment (default: the one stored with the policy)")
    sub.add_argument("--member", type=int, help="of a run folder (default: all; the first to record or export)")


def add_recipe(sub: Parser) -> None:
    sub.add_argument("--pool", type=positive, default=20, help="expert trajectories to draw from (default: 20)")
    sub.add_argument("--disjoint", action="store_true", help="draw without overlap, unlike the paper's code")
    sub.add_argument("--replay", help="for full-replay: a folder that collect wrote")


def add_grid(sub: Parser) -> None:
    sub.add_argument("--envs", nargs="+", help="default: hopper walker2d halfcheetah ant")
    sub.add_argument("--seeds", type=positive, default=5, help="how many (default: 5)")
    sub.add_argument("--seed", type=int, default=0, help="the first (default: 0)")
    sub.add_argument("--iterations", type=positive, default=1_000_000, help="default: 1000000")
    sub.add_argument("--evaluate-every", type=positive, help="iterations (default: 10000, at least four times)")
    sub.add_argument("--episodes", type=positive, default=10, help="of each reported evaluation (default: 10)")
    sub.add_argument("--early-episodes", type=positive, default=2, help="of each earlier one (default: 2)")
    sub.add_argument("--methods", nargs="+", help="default: bc demodice dwbc nbcu wbcu, and oracle on noisy-expert")
    sub.add_argument("--gradient-penalties", type=float, nargs="+", help="of demodice and wbcu (default: 0 1 10)")
    about = "a setting of every algorithm that has it; ALGORITHM.NAME=VALUE: of one"
    sub.add_argument("--set", nargs="+", default=[], metavar="NAME=VALUE", help=about)
    sub.add_argument("--add", action="store_true", help="keep what the grid in --out has; add this to its tables")
    add_precision(sub)
    sub.add_argument(
        "--time-limit", type=float, metavar="SECONDS", help="checkpoint and stop; the same command goes on"
    )
    sub.add_argument("--checkpoint-seconds", type=float, default=60.0, help="between checkpoints (default: 60)")
    sub.add_argument("--engine", choices=["local", "ray"], default="local", help="default: local")
    sub.add_argument("--address", help="of a Ray cluster (default: a cluster on this machine)")
    sub.add_argument(
        "--max-members", type=positive, help="of one program (default: all that share shapes; 60 on a GPU)"
    )
    sub.add_argument("--workers", type=positive, help="simulating processes (default: one per core)")
    add_recipe(sub)


def add_precision(sub: Parser) -> None:
    precisions = ["float32", "bfloat16"]
    about = "of hidden activations; bfloat16 is faster on a GPU, on a CPU slower (default: float32)"
    sub.add_argument("--precision", choices=precisions, default=precisions[0], help=about)


def add_algorithms(train: Parser) -> None:
    from demosift.algorithms import REGISTRY

    algorithms = train.add_subparsers(dest="algorithm", metavar="ALGORITHM", required=True, parser_class=Parser)
    for each in REGISTRY.values():
        sub = algorithms.add_parser(each.name, help=each.__doc__, description=each.__doc__)
        sub.add_argument("--json", action="store_true", help="print one JSON object")
        sub.add_argument("--task", help="train on a task, drawn anew for each seed")
        sub.add_argument("--expert", help="the expert's data (.hdf5, or minari:ID)")
        sub.add_argument("--supplementary", help="the other data")
        if getattr(each, "takes_weights", False):
            sub.add_argument("--scores", metavar="DIR", help="weights that score wrote, instead of a discriminator")
        sub.add_argument("--out", required=True, help="the run's folder")
        sub.add_argument("--seeds", type=positive, default=1, help="members per setting (default: 1)")
        sub.add_argument("--seed", type=int, default=0, help="the first seed (default: 0)")
        sub.add_argument("--iterations", type=positive, default=100_000, help="default: 100000")
        sub.add_argument("--env", help="evaluate here (default: the environment stored with the data)")
        sub.add_argument("--evaluate-every", type=int, default=10_000, help="iterations; 0: never (default: 10000)")
        sub.add_argument("--episodes", type=positive, default=10, help="per evaluation and member (default: 10)")
        sub.add_argument("--checkpoint-every", type=positive, default=5_000, help="iterations (default: 5000)")
        sub.add_argument("--log-every", type=positive, default=500, help="iterations (default: 500)")
        sub.add_argument("--resume", action="store_true", help="continue the run in --out")
        over = ["supplementary", "union"]
        sub.add_argument("--normalise", choices=over, default=over[0], help="whose statistics scale the states")
        add_precision(sub)
        outside = ["check", "clip", "rescale"]
        sub.add_argument("--actions", choices=outside, default=outside[0], help="what to do with those outside [-1, 1]")
        sub.add_argument("--tensorboard", metavar="DIR", help="also write TensorBoard events")
        sub.add_argument("--wandb", metavar="PROJECT", help="also log to Weights & Biases")
        add_recipe(sub)
        fields = sub.add_argument_group("hyper-parameters", "several values of a number make several members")
        hints = typing.get_type_hints(each)
        for field in dataclasses.fields(each):  # type: ignore[arg-type]
            add_field(fields, field.name, hints[field.name], field.default)


def add_field(group: Any, name: str, hint: Any, default: Any) -> None:
    flag = f"--{name.replace('_', '-')}"
    about = f"default: {' '.join(map(str, default)) if isinstance(default, tuple) else default}"
    if hint is float:
        group.add_argument(flag, type=float, nargs="+", default=[default], help=about)
    elif typing.get_origin(hint) is typing.Literal:
        group.add_argument(flag, choices=typing.get_args(hint), default=default, help=about)
    elif typing.get_origin(hint) is tuple:
        group.add_argument(flag, type=positive, nargs="*", default=default, help=about)
    else:
        group.add_argument(flag, type=int, default=default, help=about)


def positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return value


if __name__ == "__main__":
    sys.exit(main())
