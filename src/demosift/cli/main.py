"""The command line: `demosift VERB ...`.

Every verb prints text for people or, with `--json`, one JSON object. Bad input gives one line on stderr and exit
code 2; `ending.py` has the other codes. The flags of an algorithm are the fields of its dataclass, and several values
make several members. What takes long to import is imported by `main`.
"""

import argparse
import json
import os
import signal
import sys
import threading
import typing
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn

from demosift.cli.ending import ENDINGS, explain, say, streams
from demosift.cli.flags import Parser, within
from demosift.cli.parsers import subcommands
from demosift.errors import printable
from demosift.ranges import (
    EPISODES,
    FOLDS,
    HALF,
    MEMBER,
    MEMBERS,
    NOT_NEGATIVE,
    POOL,
    POSITIVE,
    PROCESSES,
    ROWS,
    SCALE,
    SECONDS,
    SEED,
    SHARE,
    STEPS,
    STEPS_OR_NEVER,
    UNIT,
    WIDTH,
    Range,
)

DEFAULT_ALGORITHM = "sift"
PRECISIONS = ["float32", "bfloat16"]
KEEP_PROGRAMS = ("collect", "demo", "reproduce", "score", "train")  # verbs that compile; `bench` takes its time
MEANINGS = {  # of the fields that methods share; another field is explained by its name
    "alpha": "alpha of the method's paper",
    "average": "share that each step keeps of a moving average of the policy's parameters, such as 0.999; 0 for none",
    "batch_size": "rows in a batch",
    "beta": "how fast the reward falls with the distance from the expert",
    "bias": "number that is subtracted from every reward",
    "critic_decay": "weight decay of the critic",
    "critic_learning_rate": "learning rate of the critic",
    "decay": "decoupled weight decay of the policy",
    "discount": "discount factor",
    "discriminator_batch_size": "rows in a batch of the discriminators",
    "discriminator_every": "iterations between steps of the discriminator",
    "discriminator_iterations": "iterations of the discriminator, before those of the policy",
    "discriminator_learning_rate": "learning rate of the discriminator",
    "divergence": "divergence from the supplementary data that the method keeps small",
    "eta": "eta of the method's paper",
    "expectile": "expectile of the actions' values that V learns: 0.5 is their mean, near 1 their maximum",
    "first_iterations": "iterations of the first discriminator",
    "form": "weights as in the paper, or as in the authors' code",
    "gradient_penalty": "coefficient of the discriminator's gradient penalty",
    "hidden": "widths of the hidden layers",
    "kappa": "power to which density ratios are raised",
    "learning_rate": "learning rate of the policy",
    "log_std_floor": "smallest log standard deviation of the policy",
    "loss": "likelihood of the action, or squared error of the action that is taken",
    "negative_share": "share of the episodes that are safe negatives of the second discriminator",
    "network": "network of the policy: perceptron, layer-norm, or one that another package registers",
    "nu_penalty": "coefficient of the critic's gradient penalty",
    "penalty": "output whose gradient is penalised",
    "rate_schedule": "learning rate that stays, or falls to zero at the end like a cosine",
    "ratio": "density ratio as in the paper's code (smoothed) or in the paper (exact)",
    "scaling": "rewards as they are (none), or scaled so that the best and the worst return are 1,000 apart (returns)",
    "scorer": "scorer that weighs the data",
    "most_rows": "rows of the supplementary set to learn from: those of its best episodes",
    "sigma": "smallest likeness to the expert's states that counts as one of them",
    "steps_ahead": "steps within which a row must lead to a state of the expert",
    "target_rate": "share of the way that target networks move towards the critics in an iteration",
    "temperature": "factor of the advantage in a row's weight: 0 weighs all rows alike, more prefers the best",
    "threshold": "smallest weight that counts; lower ones become zero",
    "weight_decay": "weight decay of the policy",
}
NOT_SET = {"log_std_floor": "the network's own, -5"}  # what a default of None comes to


class Version(argparse.Action):
    """argparse's own would look the version up for every command."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        import demosift

        print(f"demosift {demosift.__version__}")
        parser.exit()


def main(arguments: Sequence[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    heard: list[signal.Signals] = []
    try:
        with ending_signals() as heard, streams():
            return answer(arguments)
    except SystemExit:
        raise
    except BaseException as error:  # a panic of a library in Rust is no Exception
        # An import or a library that was interrupted may fail in ways of its own.
        return explain(error, debug="--debug" in arguments, heard=heard[0] if heard else None)


def answer(arguments: list[str]) -> int:
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_, **__: say(f"warning: {message}")
        options = parse(arguments)
        from demosift.cli import verbs  # not before: --help needs nothing that it imports
        from demosift.files import plain

        if options.verb in KEEP_PROGRAMS:
            from demosift.learning.compiled import keep_programs

            keep_programs()
        result, text = getattr(verbs, f"run_{options.verb}")(options)
    if options.json:
        print(json.dumps(plain(result), sort_keys=True))
    else:
        print("\n".join(map(printable, text.split("\n"))))
    return options.exit_code(result)


@contextmanager
def ending_signals() -> Iterator[list[signal.Signals]]:
    """Make a signal that ends the program a KeyboardInterrupt, so that files and processes are put away; yields what
    was heard.

    Python drops an exception raised inside a callback of its garbage collector, and JAX installs such a callback. So
    the signal is sent again every two seconds until the program ends. What breaks while it ends is not told. While a
    module is imported nothing is raised: libraries crash when their initialisation is left in the middle.
    """
    heard: list[signal.Signals] = []
    if threading.current_thread() is not threading.main_thread():
        yield heard
        return
    over, sending, raised = threading.Event(), threading.Lock(), threading.Event()

    def again() -> None:
        while not over.wait(2.0 if raised.is_set() else 0.1):
            with sending:
                if not over.is_set():
                    os.kill(os.getpid(), signal.SIGINT)

    def interrupt(number: int, frame: FrameType | None) -> None:
        if over.is_set():
            return
        if not heard:
            heard.append(signal.Signals(number))
            sys.unraisablehook = threading.excepthook = lambda _: None
            threading.Thread(target=again, daemon=True).start()
        if not is_importing(frame):
            raised.set()
            raise KeyboardInterrupt

    numbers = [number for number in ENDINGS if number == signal.SIGINT or signal.getsignal(number) != signal.SIG_IGN]
    hooks = sys.unraisablehook, threading.excepthook
    before = {number: signal.signal(number, interrupt) for number in numbers}
    try:
        yield heard
    finally:
        over.set()
        with sending:  # what is sent later would find no handler
            pass
        for number, handler in before.items():
            signal.signal(number, handler)
        if not heard:  # else what was left in the middle is deleted after this, and may complain
            sys.unraisablehook, threading.excepthook = hooks


def is_importing(frame: FrameType | None) -> bool:
    while frame is not None and not frame.f_code.co_filename.startswith("<frozen importlib"):
        frame = frame.f_back
    return frame is not None


def parse(arguments: list[str]) -> argparse.Namespace:
    """The options: what the command line says, then what a configuration file says, then the defaults."""
    if arguments[:1] != ["train"]:
        return make_parser(arguments).parse_args(arguments)
    from demosift.cli.config import read_request

    request = read_request(arguments[1:])
    arguments = with_algorithm(arguments, request.algorithm or DEFAULT_ALGORITHM)
    parser = make_parser(arguments)
    for name, algorithm in subcommands(subcommands(parser)["train"]).items():
        if name == first_word(arguments):
            request.set_defaults(algorithm)
    options = parser.parse_args(arguments)
    options.request = request
    return options


def with_algorithm(arguments: Sequence[str], default: str = DEFAULT_ALGORITHM) -> list[str]:
    """The arguments with the default algorithm where `train` is followed by flags alone, or by nothing.

    An algorithm that has several names gets the one that files have.
    """
    from demosift.registry import ALGORITHMS

    word = first_word(arguments)
    if list(arguments[:1]) == ["train"] and word is not None and word in ALGORITHMS.also:
        place = arguments.index(word)
        return [*arguments[:place], ALGORITHMS.own_name(word), *arguments[place + 1 :]]
    named = word in ("-h", "--help") or (word is not None and not word.startswith("-"))
    if list(arguments[:1]) != ["train"] or named:
        return list(arguments)
    return ["train", default, *arguments[1:]]


def first_word(arguments: Sequence[str]) -> str | None:
    """What follows the verb."""
    return next((word for word in arguments[1:] if word not in ("--json", "--debug")), None)


def make_parser(arguments: Sequence[str]) -> Parser:
    parser = Parser(prog="demosift", description="Offline imitation learning with a supplementary dataset.")
    parser.add_argument("--version", action=Version, nargs=0, help="show the version and exit")
    subparsers = parser.add_subparsers(dest="verb", metavar="VERB", required=True, parser_class=Parser)

    def verb(name: str, about: str) -> Parser:
        """Its parser; `run_NAME` in `verbs.py` is what it does."""
        sub = subparsers.add_parser(name, help=about, description=about)
        add_output(sub)
        sub.set_defaults(exit_code=lambda result: 0)
        return sub

    about = "compare BC, NBCU, WBCU and sift on halfcheetah/noisy-expert: a table and a page"
    sub = verb("demo", about)
    add = sub.add_argument
    add("--out", default="demo", help="folder for the runs and report.html (default: demo)")
    add("--seeds", type=within(MEMBERS), default=3, help="number of seeds for each method (default: 3)")
    about = "training iterations of sift; the other policies have a fifth of them, and WBCU's discriminator a tenth "
    about += "(default: enough for about three minutes in all)"
    add("--iterations", type=within(STEPS), help=about)

    sub = verb("collect", "train SAC and keep an expert, a medium policy and the replay")
    add = sub.add_argument
    add("env", nargs="+", help="a short name such as hopper, or a Gymnasium id; several train together")
    add("--out", required=True, help="folder to write; several environments get a subfolder each")
    add("--steps", type=within(STEPS), default=1_000_000, help="environment steps per agent (default: 1000000)")
    add("--seed", type=within(SEED), default=0, help="the first seed (default: 0)")
    add("--seeds", type=within(MEMBERS), default=1, help="agents per environment; the best is kept (default: 1)")
    add("--evaluate-every", type=within(STEPS), default=10_000, help="steps between evaluations (default: 10000)")
    add("--episodes", type=within(EPISODES), default=10, help="episodes per evaluation (default: 10)")
    about = "discount factor; several values train more agents (default: 0.99)"
    add("--discount", type=within(UNIT), nargs="+", default=[0.99], help=about)
    about = "target entropy per action dimension; several values train more agents, and ENV=VALUE sets it for one "
    about += "environment (default: -1)"
    add("--target-entropy", nargs="+", default=["-1"], metavar="VALUE", help=about)
    add("--resume", action="store_true", help="continue from the folder's checkpoint")
    add("--checkpoint-seconds", type=within(SECONDS), default=30.0, help="time between checkpoints (default: 30)")
    add("--keep-checkpoint", action="store_true", help="keep the checkpoint, so that training can continue")
    add("--time-limit", type=within(SECONDS), metavar="SECONDS", help="write a checkpoint and stop after this time")

    sub = verb("record", "run a policy in its environment and write the episodes to a file")
    add = sub.add_argument
    add_policy(sub)
    add("--out", required=True, help="the file to write (.hdf5), or minari:ID")
    add("--episodes", type=within(EPISODES), default=10, help="number of episodes (default: 10)")
    add("--seed", type=within(SEED), default=0, help="seed of the episodes (default: 0)")

    sub = verb("task", "write a task's expert.hdf5 and supplementary.hdf5")
    add = sub.add_argument
    about = "ENV/RECIPE, RECIPE one of noisy-expert, full-replay, medium-expert, random-expert, haystack, no-expert, "
    about += "missing-steps; or, where ENV comes with a program that solves it, such as metaworld-push, "
    about += "ogbench-cube-single or babyai-goto: ENV/mixed"
    add("task", help=about)
    add("--out", required=True, help="folder to write")
    add("--seed", type=within(SEED), default=0, help="seed of the draw (default: 0)")
    add("--episodes", type=within(EPISODES), default=200, help="ENV/mixed: episodes of the pile (default: 200)")
    add_recipe(sub)

    train = verb("train", f"train a policy with {DEFAULT_ALGORITHM}, or with the algorithm you name")
    if arguments[:1] == ["train"]:  # the algorithms' fields are the flags, and knowing them takes importing JAX
        add_algorithms(train, arguments)

    sub = verb("evaluate", "measure a policy's returns and normalised scores, member by member")
    add = sub.add_argument
    add_policy(sub)
    add("--episodes", type=within(EPISODES), default=10, help="episodes per member (default: 10)")
    add("--seed", type=within(SEED), default=0, help="seed of the episodes (default: 0)")

    sub = verb("score", "weigh every sample by how much it is worth imitating, from files alone")
    add = sub.add_argument
    add("dataset", nargs="?", help="one dataset that holds good and bad episodes, instead of --supplementary")
    add("--expert", help="the expert's data: a file, a folder or minari:ID; none where nobody knows which are good")
    about = "the dataset's good episodes: numbers such as 0,3,7-12, a file of them, or decisions from the page"
    add("--expert-episodes", metavar="LIST", help=about)
    about = "the dataset's good episodes: those of which a column, an attribute or a filter key says so, as success=1"
    add("--expert-where", metavar="NAME=VALUE", help=about)
    add("--supplementary", help="the supplementary data, in any of the same forms")
    add("--bad", help="data that are known to be bad: rows that look like them weigh less")
    add("--bad-episodes", metavar="LIST", help="the dataset's episodes that are known to be bad")
    about = "column, attribute or filter key that says which task an episode is of: each task is scored by itself; "
    about += "none for all together (default: LeRobot's tasks)"
    add("--task-column", metavar="NAME", help=about)
    add("--out", required=True, help="folder for the scores and report.html")
    about = "what weighs the rows: contrast, wbcu, demodice, dwbc, neighbours, trees, or a scorer that another package "
    about += "registers (default: contrast)"
    add("--scorer", default="contrast", metavar="NAME", help=about)
    add("--members", type=within(MEMBERS), default=3, help="independent estimates of each weight (default: 3)")
    add("--folds", type=within(FOLDS), default=5, help="number of parts to leave out of training in turn (default: 5)")
    add("--seed", type=within(SEED), default=0, help="random seed (default: 0)")
    add("--threshold", type=within(POSITIVE), default=0.5, help="smallest weight of a sample to keep (default: 0.5)")
    about = "the expert's actions are unknown: compare states and where they lead, and look at no action"
    add_observations(sub, about)
    add_engine(sub, "where to read and weigh the rows; models are trained here (default: local)")
    add_actions(sub)
    add_features(sub)

    sub = verb("filter", "write the part of a dataset that its scores advise to keep")
    add = sub.add_argument
    add("data", help="the data that were scored: a file, a folder or minari:ID")
    add("--scores", required=True, metavar="DIR", help="folder that score wrote")
    add("--out", required=True, help="where to write; a prefix such as minari: changes the format")
    about = "keep rows that weigh at least this (default: the threshold of score)"
    add("--threshold", type=within(POSITIVE), help=about)
    add("--top", type=within(SHARE), metavar="SHARE", help="keep this share of the rows, the heaviest first")
    about = "keep the N best episodes, or below 1 that share of them"
    add("--episodes", type=within(POSITIVE), metavar="N", help=about)
    add("--frames", action="store_true", help="cut idle starts and ends, and stretches that weigh little")
    add("--decisions", metavar="FILE", help="keep and drop the episodes that a person decided about on the page")
    add("--filter-key", metavar="NAME", help="write a copy of a robomimic file with this filter key instead")
    add("--weights", action="store_true", help="write lists of episodes, a weight per frame and frames to cut instead")

    sub = verb("export", "write a policy as an ONNX file, checked against the original")
    add = sub.add_argument
    add_policy(sub)
    add("--out", required=True, help="the file to write (.onnx)")
    add("--data", nargs="+", help="files to check the export on (default: those of its training)")

    sub = verb("reproduce", "make the paper's tables and figures, from the start or continued")
    add = sub.add_argument
    about = (
        "the part to make: noisy-expert, full-replay, gradient-penalty, coverage, sac-curves or all; or successors, "
    )
    about += "later methods on many piles, or d4rl, methods on files of D4RL beside published numbers"
    add("what", metavar="WHAT", help=about)
    add("--out", required=True, help="folder for the results; a grid found there is continued")
    add_grid(sub)
    sub.set_defaults(exit_code=lambda result: 1 if result.get("failed") else 0)

    sub = verb("theory", "check the paper's claims by computation; exits with 1 if one is refuted")
    add = sub.add_argument
    add("--out", required=True, help="folder for index.html, theory.json and figures/")
    add("--seed", type=within(SEED), default=0, help="seed of the random instances (default: 0)")
    add("--scale", type=within(SCALE), default=1.0, help="number of instances, as a multiple of the usual (default: 1)")
    add("--claims", nargs="+", metavar="NAME", default=[], help="claims to check (default: all)")
    add("--processes", type=within(PROCESSES), default=2, help="number of processes (default: 2)")
    sub.set_defaults(exit_code=lambda result: 1 if result["refuted"] else 0)

    sub = verb("report", "write the tables, figures and page of the results or runs in a folder")
    add = sub.add_argument
    add("folder", help="a folder with runs in it, or one that reproduce or score wrote")

    sub = verb(
        "bench",
        "measure speed against this machine's limit, how good scorers are, or the time that a user waits",
    )
    add = sub.add_argument
    what = ["speed", "scores", "scale", "recipe", "rewards", "user"]
    add("what", nargs="?", choices=what, default=what[0], help="what to measure (default: speed)")
    add("--measures", nargs="+", metavar="NAME", help="scores: any of noisy-expert, haystack, full-replay")
    add("--scorers", nargs="+", metavar="NAME", help="scores: scorers to compare (default: all)")
    add("--envs", nargs="+", metavar="ENV", help="scores, recipe: environments (default: all four)")
    add("--seeds", type=within(MEMBERS), default=3, help="scores: number of draws of each task (default: 3)")
    add("--replay", metavar="DIR", help="scores: folder in which collect wrote each environment")
    add("--seed", type=within(SEED), default=10, help="recipe: seed of the data (default: 10)")
    add("--iterations", type=within(STEPS), help="recipe: iterations of sift and of plain BC (default: 25000 each)")
    about = "recipe: networks that act as one policy (default: 5 1, one after the other)"
    add("--ensemble", type=within(MEMBERS), nargs="+", default=[5, 1], metavar="K", help=about)
    about = "file for the results, with tables beside it; speed, scores: what is found there is not measured again"
    add("--out", metavar="FILE.json", help=about)
    about = "scale, rewards, user: rows of the supplementary set (default: 100k, 1M, 20M; rewards 1M; user 16k, 1M)"
    add("--rows", type=within(ROWS), nargs="+", help=about)
    about = "scale: engines to score with; both give the same bytes, which is checked (default: local)"
    add("--engine", choices=["local", "ray"], nargs="+", default=["local"], help=about)
    add("--address", help="scale: address of a Ray cluster (default: a cluster on this machine)")
    add("--folder", metavar="DIR", help="scale: where to write the piles; some 110 bytes per row (default: /tmp)")
    about = "speed: numbers of members (default: 1 5 20)"
    add("--members", type=within(MEMBERS), nargs="+", default=[1, 5, 20], help=about)
    add("--algorithms", nargs="+", metavar="NAME", help="speed: algorithms to measure (default: all)")
    add("--seconds", type=within(SECONDS), default=2.0, help="speed: seconds for each measurement (default: 2)")
    about = "speed: precisions of hidden activations (default: float32)"
    add("--precision", choices=PRECISIONS, nargs="+", default=PRECISIONS[:1], help=about)
    add("--collect", action="store_true", help="speed: also measure the loop of collect")

    sub = verb("completion", "print a script by which a shell completes verbs, algorithms, flags and their choices")
    sub.add_argument("shell", choices=["bash", "zsh", "fish"], help="the shell to write for")
    return parser


def add_output(sub: Parser) -> None:
    sub.add_argument("--json", action="store_true", help="print the result as one JSON object")
    sub.add_argument("--debug", action="store_true", help="show the traceback of an error")


def add_policy(sub: Parser) -> None:
    sub.add_argument("policy", help="a run folder, a .safetensors file, or expert, medium or random with --env")
    add_environment(sub, "the environment (default: the one stored with the policy)")
    about = "member of a run folder (default: all; the first to record or export)"
    sub.add_argument("--member", type=within(MEMBER), help=about)


def add_environment(sub: Parser, about: str) -> None:
    sub.add_argument("--env", help=about)
    about = "keyword arguments to make the environment with; VALUE is JSON, or else text"
    sub.add_argument("--env-arg", nargs="+", metavar="NAME=VALUE", help=about)


def add_recipe(sub: Parser) -> None:
    sub.add_argument("--pool", type=within(POOL), default=20, help="expert trajectories to draw from (default: 20)")
    about = "draw no trajectory twice, unlike the paper's code"
    sub.add_argument("--disjoint", action=argparse.BooleanOptionalAction, default=False, help=about)
    about = "folder that collect wrote; full-replay needs it, no-expert uses it"
    sub.add_argument("--replay", metavar="DIR", help=about)
    about = "trajectories of the expert set (default: the recipe's: one, or five of mixed)"
    sub.add_argument("--expert-trajectories", type=within(POOL), metavar="N", help=about)


def add_grid(sub: Parser) -> None:
    add = sub.add_argument
    add("--envs", nargs="+", metavar="ENV", help="environments (default: hopper walker2d halfcheetah ant)")
    add("--seeds", type=within(MEMBERS), default=5, help="number of seeds (default: 5)")
    add("--seed", type=within(SEED), default=0, help="the first seed (default: 0)")
    add("--iterations", type=within(STEPS), default=1_000_000, help="iterations of each run (default: 1000000)")
    about = "iterations between evaluations (default: 10000, or less for at least four evaluations)"
    add("--evaluate-every", type=within(STEPS), help=about)
    about = "episodes of each evaluation that the tables use (default: 10)"
    add("--episodes", type=within(EPISODES), default=10, help=about)
    add("--early-episodes", type=within(EPISODES), default=2, help="episodes of earlier evaluations (default: 2)")
    about = "successors: piles such as haystack, medium-expert:5 (expert trajectories) or haystack:observations; d4rl: "
    about += "datasets such as medium-expert (default: all)"
    add("--piles", nargs="+", metavar="NAME", help=about)
    add("--data", metavar="DIR", help="d4rl: folder with files such as hopper_medium_expert-v2.hdf5")
    about = "methods to run, NAME+robust with the robust cloner (default: those of the part's tables)"
    add("--methods", nargs="+", metavar="NAME", help=about)
    about = "gradient penalties of demodice and wbcu (default: 0 1 10)"
    add("--gradient-penalties", type=within(NOT_NEGATIVE), nargs="+", help=about)
    about = "change a setting of every algorithm that has it, or of one with ALGORITHM.NAME=VALUE"
    add("--set", nargs="+", default=[], metavar="NAME=VALUE", help=about)
    about = "networks that act as one policy (default: one; five for sift and with the robust cloner of successors)"
    add("--ensemble", type=within(MEMBERS), metavar="K", help=about)
    add_named_recipe(sub)
    add_observations(sub)
    add("--add", action="store_true", help="keep the grid in --out as it is and add this one to its tables")
    add_precision(sub)
    about = "write a checkpoint and stop after this time; the same command continues"
    add("--time-limit", type=within(SECONDS), metavar="SECONDS", help=about)
    add("--checkpoint-seconds", type=within(SECONDS), default=60.0, help="time between checkpoints (default: 60)")
    add_engine(sub, "where to run (default: local)")
    about = "most members in one program (default: all that share shapes; as 240 networks on a GPU)"
    add("--max-members", type=within(MEMBERS), help=about)
    add("--workers", type=within(PROCESSES), help="number of simulating processes (default: one per core)")
    add_recipe(sub)


UNKNOWN_ACTIONS = "the expert's actions are unknown: its file need not have any, and those that it has are not used"


def add_observations(sub: Parser, about: str = UNKNOWN_ACTIONS) -> None:
    sub.add_argument("--expert-observations", action=argparse.BooleanOptionalAction, default=False, help=about)


def add_engine(sub: Parser, about: str) -> None:
    sub.add_argument("--engine", choices=["local", "ray"], default="local", help=about)
    sub.add_argument("--address", help="address of a Ray cluster (default: a cluster on this machine)")


def add_precision(sub: Parser) -> None:
    about = "precision of hidden activations; bfloat16 is faster on a GPU and slower on a CPU (default: float32)"
    sub.add_argument("--precision", choices=PRECISIONS, default=PRECISIONS[0], help=about)


def add_actions(sub: Parser) -> None:
    outside = ["check", "clip", "rescale"]
    about = "what to do with actions outside [-1, 1] (default: check, which refuses them)"
    sub.add_argument("--actions", choices=outside, default=outside[0], help=about)


def add_features(sub: Parser) -> None:
    add = sub.add_argument_group(
        "pictures", "what cameras show, as more columns of the state (docs/cameras.md)"
    ).add_argument
    add("--encoder", metavar="FILE.onnx", help="encoder of pictures: default, or an ONNX file of your own")
    add("--cameras", nargs="+", metavar="NAME", help="cameras to use (default: all, if there is an encoder)")
    add("--every", type=within(STEPS), metavar="N", help="embed every N-th picture (default: 5)")
    add("--components", type=within(WIDTH), metavar="K", help="most columns of each camera (default: 32)")
    add("--image-size", type=within(WIDTH), metavar="PIXELS", help="size of pictures for the encoder (default: 224)")
    add("--cache", metavar="DIR", help="folder for embeddings (default: DEMOSIFT_CACHE, or ~/.cache/demosift)")
    about = "features of your own instead: a .npy, .npz or .parquet file for each dataset (expert, supplementary, bad)"
    add("--features", nargs="+", metavar="FILE", help=about)
    add("--without-state", action="store_true", help="use pictures or features alone, without the state")


def add_algorithms(train: Parser, arguments: Sequence[str]) -> None:
    """A subparser for the algorithm that is named, or for each if none is. No other is imported."""
    from demosift.learning.algorithm import describe, member_fields, range_of, setting_fields
    from demosift.registry import ALGORITHMS

    named = next((word for word in arguments[1:] if not word.startswith("-")), None)
    if named is not None and named not in ALGORITHMS:
        train.error(f"argument ALGORITHM: invalid choice: {named!r} (choose from {', '.join(ALGORITHMS)})")

    about = f"{DEFAULT_ALGORITHM} if you name none; demosift train ALGORITHM --help lists the flags of each"
    algorithms = train.add_subparsers(
        dest="algorithm",
        metavar="ALGORITHM",
        prog="demosift train",
        title="algorithms",
        description=about,
        required=True,
        parser_class=Parser,
    )
    train.usage = "demosift train [ALGORITHM] --expert DATA --supplementary DATA --out DIR [flags]"
    for each in ALGORITHMS.loaded().values() if named is None else [ALGORITHMS[named]]:
        about = (each.__doc__ or "").partition("\n")[0].replace("%", "%%")
        sub = algorithms.add_parser(each.name, help=about, description=about)
        add = sub.add_argument
        add_output(sub)
        add("--task", help="train on a task such as hopper/noisy-expert, drawn anew for each seed")
        add("--expert", help="the expert's data: a file, a folder or minari:ID")
        add("--supplementary", help="the supplementary data, in any of the same forms")
        add_observations(sub)
        if each.takes_weights:
            add("--scores", metavar="DIR", help="folder of weights that score wrote, used as they are")
        about = "data that are known to be bad: rows that look like them are worth less"
        add("--bad", help=f"{about}{'' if each.takes_bad else ' (refused: this method cannot use them)'}")
        add("--bad-episodes", metavar="LIST", help="the supplementary data's episodes that are known to be bad")
        add("--out", required=True, help="folder for the run")
        about = "TOML file with the names and values of flags; those of the command line win"
        add("--config", metavar="FILE", help=about)
        about = "repeat the run in this folder: its run.toml, on the same data"
        add("--from", dest="origin", metavar="DIR", help=about)
        add("--seeds", type=within(MEMBERS), default=1, help="members per setting (default: 1)")
        add("--seed", type=within(SEED), default=0, help="the first seed (default: 0)")
        about = f"iterations to train (default: {each.about.iterations})"
        add("--iterations", type=within(STEPS), default=each.about.iterations, help=about)
        about = f"networks that act as one policy, by the mean of their actions (default: {each.about.ensemble})"
        add("--ensemble", type=within(MEMBERS), default=each.about.ensemble, metavar="K", help=about)
        add_named_recipe(sub)
        add_environment(sub, "environment to evaluate in (default: the one stored with the data)")
        about = "iterations between evaluations; 0 means never (default: 10000)"
        add("--evaluate-every", type=within(STEPS_OR_NEVER), default=10_000, help=about)
        about = "episodes per evaluation and member (default: 10)"
        add("--episodes", type=within(EPISODES), default=10, help=about)
        about = "share of the expert's rows to leave out of training and to judge the policies by (default: none)"
        add("--held-out", type=within(HALF), metavar="SHARE", help=about)
        about = "end when no member's held-out loss improved in N rows of metrics, and keep the best policy of each"
        add("--patience", type=within(STEPS), metavar="N", help=f"{about} (default: never)")
        about = "iterations between checkpoints (default: 5000)"
        add("--checkpoint-every", type=within(STEPS), default=5_000, help=about)
        about = "iterations between rows of metrics (default: 500)"
        add("--log-every", type=within(STEPS), default=500, help=about)
        add("--resume", action="store_true", help="continue the run in --out")
        over = ["supplementary", "union"]
        about = "data whose statistics scale the states (default: supplementary)"
        add("--normalise", choices=over, default=over[0], help=about)
        add_precision(sub)
        add_actions(sub)
        add("--tensorboard", metavar="DIR", help="also write TensorBoard events to this folder")
        add("--wandb", metavar="PROJECT", help="also log to this Weights & Biases project")
        add_recipe(sub)
        fields = sub.add_argument_group("hyper-parameters", "several values of a number train several members")
        defaults = describe(each())
        for field in setting_fields(each):
            if field.metadata.get("flag", True):
                several = field.name in member_fields(each)
                default = defaults.get(field.name, field.default)
                add_field(fields, field.name, field.type, range_of(field), default, several)


def add_named_recipe(sub: Parser) -> None:
    about = "named settings for any method; robust clones better in fewer iterations (default: the method's own)"
    sub.add_argument("--recipe", choices=["paper", "robust"], help=about)


def add_field(group: Any, name: str, hint: Any, allowed: Range | None, default: Any, several: bool) -> None:
    """A flag of one hyper-parameter. What is not given stays out of the options, so that a recipe may say it."""
    value = " ".join(map(str, default)) if isinstance(default, tuple | list) else default
    value = NOT_SET.get(name, "none") if default is None else value
    about = f"{MEANINGS.get(name, name.replace('_', ' '))} (default: {value})"
    options: dict[str, Any] = {"default": argparse.SUPPRESS, "help": about}
    if hint is bool:
        options |= {"action": argparse.BooleanOptionalAction}
    elif typing.get_origin(hint) is typing.Literal:
        options |= {"choices": typing.get_args(hint)}
    elif typing.get_origin(hint) is tuple:
        options |= {"nargs": "*", "action": "store"}  # two layers may have the same width
    elif several:
        options |= {"nargs": "+"}
    if allowed is not None:
        options |= {"type": within(allowed)}
    group.add_argument(f"--{name.replace('_', '-')}", **options)


if __name__ == "__main__":
    sys.exit(main())
