"""What each verb of the command line does. Imports are inside the functions, so a verb loads only what it needs."""

import argparse
import dataclasses
import itertools
import json
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from demosift.cli.config import write_request
from demosift.cli.ending import say
from demosift.ranges import NUMBER, SEED, shown
from demosift.types import Demonstrations, EnvironmentSpec, InputError

if TYPE_CHECKING:
    from demosift.algorithms import Algorithm
    from demosift.data.formats import Source
    from demosift.policy import Actor
    from demosift.vision.embedding import Cameras

Answer = tuple[dict[str, Any], str]  # for --json, and for a person


def run_demo(options: argparse.Namespace) -> Answer:
    from demosift.cli.demo import demo

    return demo(options.out, seeds=options.seeds, iterations=options.iterations)


def run_collect(options: argparse.Namespace) -> Answer:
    from demosift.sac.agent import SAC
    from demosift.sac.choosing import Schedule
    from demosift.sac.collect import collect

    entropies = target_entropies(options.target_entropy, options.env)
    result = collect(
        options.env,
        options.out,
        steps=options.steps,
        seeds=seeds_of(options),
        sac={
            env: [
                SAC(discount=discount, target_entropy=entropy)
                for discount, entropy in itertools.product(options.discount, own)
            ]
            for env, own in entropies.items()
        },
        resume=options.resume,
        keep_checkpoint=options.keep_checkpoint,
        time_limit=options.time_limit,
        schedule=Schedule(
            evaluate_every=options.evaluate_every,
            evaluation_episodes=options.episodes,
            checkpoint_seconds=options.checkpoint_seconds,
        ),
    )
    answer = dataclasses.asdict(result)
    lines = [f"{name}: {json.dumps(row)}" for name, row in result.results.items()]
    if not result.finished:
        lines.append(f"stopped at step {result.step:,}; continue with --resume")
    return answer, "\n".join(lines)


def seeds_of(options: argparse.Namespace) -> range:
    last = options.seed + options.seeds - 1
    SEED.check("--seed and --seeds: the last seed", last)
    return range(options.seed, last + 1)


def target_entropies(texts: Sequence[str], envs: Sequence[str]) -> dict[str, list[float]]:
    """ENV=VALUE sets that environment alone; a VALUE without a name sets every environment that is not named."""
    named: dict[str | None, list[float]] = {}
    for text in texts:
        env, separator, value = text.rpartition("=")
        if separator and env not in envs:
            raise InputError(f"--target-entropy {text}: {env!r} is none of the environments, {', '.join(envs)}")
        try:
            named.setdefault(env if separator else None, []).append(NUMBER.read(value))
        except InputError as error:
            raise InputError(f"--target-entropy {shown(text)}: write VALUE or ENV=VALUE; {error}") from None
    return {env: named.get(env) or named.get(None) or [-1.0] for env in envs}


def run_record(options: argparse.Namespace) -> Answer:
    from demosift.data import reserve_target, write_dataset
    from demosift.data.formats import format_to_write
    from demosift.simulation.evaluation import policy_and_environment, spread
    from demosift.tasks.record import record

    policy, spec = policy_and_environment(*chosen_policy(options))
    format_to_write(options.out)
    with reserve_target(options.out):
        dataset = record(policy, options.episodes, env=spec, seed=options.seed, member=options.member or 0)
        write_dataset(dataset, options.out)
    returns = dataset.returns()
    answer = {"file": options.out, "rows": len(dataset), "episodes": len(returns), "returns": returns.tolist()}
    deviation = spread(returns)
    mean = f"mean return {returns.mean():.1f}" + ("" if deviation is None else f" ± {deviation:.1f}")
    return answer, f"{options.out}: {len(returns)} episodes, {len(dataset):,} transitions, {mean}"


def chosen_policy(options: argparse.Namespace, member: int | None = None) -> "tuple[Actor, EnvironmentSpec | None]":
    """The policy, and the environment that the flags speak of: by name, or the stored one with other arguments."""
    from demosift.simulation.environments import read_arguments, resolve, stored
    from demosift.simulation.evaluation import load_policy

    own = read_arguments(options.env_arg or ())
    spec = resolve(options.env, **own) if options.env else None
    policy = load_policy(options.policy, env=spec, member=member)
    if own and spec is None:
        if policy.environment is None:
            raise InputError("--env-arg: the policy does not say which environment it is for: name one with --env")
        spec = stored(policy.environment, **own)
    return policy, spec


def run_task(options: argparse.Namespace) -> Answer:
    from demosift.files import reserved
    from demosift.tasks.recipes import make_task, write_task

    recipe = {"pool": options.pool, "replay": options.replay, "disjoint": options.disjoint}
    recipe["experts"] = options.expert_trajectories
    with reserved(options.out):
        task = make_task(options.task, options.seed, episodes=options.episodes, **recipe)
        write_task(task, options.out)
    assert task.supplementary is not None
    parts = {"expert": task.expert, "supplementary": task.supplementary}
    answer = {name: {"rows": len(part), "episodes": part.num_episodes} for name, part in parts.items()}
    lines = [
        f"{Path(options.out, name)}.hdf5: {part.num_episodes} episodes, {len(part):,} transitions"
        for name, part in parts.items()
    ]
    return {"task": options.task, "seed": options.seed, "out": options.out, **answer}, "\n".join(lines)


def run_train(options: argparse.Namespace) -> Answer:
    from contextlib import ExitStack

    from demosift.algorithms import REGISTRY
    from demosift.learning.algorithm import check_expert_actions
    from demosift.learning.fit import fit
    from demosift.learning.runner import Callback
    from demosift.learning.trackers import TensorBoard, WandB
    from demosift.simulation.evaluation import Evaluator

    class Writer(Callback):
        def on_start(self, position: int, note: object) -> None:
            write_request(options, settings)  # when the folder is this run's

    cls = REGISTRY[options.algorithm]
    check_expert_actions(cls, not options.expert_observations)
    settings = settings_of(cls, options)
    seeds = list(seeds_of(options))
    data = read_training_data(options, seeds)
    if options.origin is not None and options.request.asks_for_data_of(options):
        check_same_data(options.origin, data)
    environment = evaluation_environment(options, data[0])
    with ExitStack() as stack:
        evaluator = None
        if environment is not None and options.evaluate_every:
            every = min(options.evaluate_every, options.iterations)
            evaluator = stack.enter_context(
                Evaluator(environment, every=every, episodes=options.episodes, seed=options.seed)
            )
        trackers = [TensorBoard(options.tensorboard)] if options.tensorboard else []
        trackers += [WandB(options.wandb)] if options.wandb else []
        run = fit(
            settings,
            data,
            seeds=seeds,
            iterations=options.iterations,
            ensemble=options.ensemble,
            normalise=options.normalise,
            precision=options.precision,
            environment=environment,
            evaluator=evaluator,
            held_out=options.held_out,
            patience=options.patience,
            log_every=options.log_every,
            checkpoint_every=options.checkpoint_every,
            out=options.out,
            resume=options.resume,
            callbacks=[Writer(), *trackers],
            task=task_name(options),
        )
    iterations, chosen = run.config["iterations"], run.config.get("chosen")
    last = [row for row in run.metrics if row["iteration"] == iterations]
    answer = {"out": options.out, "members": run.members, "iterations": iterations, "last": last}
    text = describe_run(options.out, last)
    if chosen is not None:
        answer["chosen"] = chosen
        if len(run.members) > 1:
            text += f"\nleast held-out loss: member {chosen['member']} (use it with --member {chosen['member']})"
    return answer, text


def settings_of(cls: "type[Algorithm]", options: argparse.Namespace) -> "list[Algorithm]":
    """The algorithm with every combination of the numbers that were given; a tuple is one value."""
    from demosift.learning.algorithm import make_algorithm, member_fields, setting_fields
    from demosift.learning.cloning import RECIPES

    given = {field.name: getattr(options, field.name) for field in setting_fields(cls) if field.name in options}
    fields = {**RECIPES[options.recipe or "paper"], **given}
    several = member_fields(cls)
    choices = [value if name in several and isinstance(value, list) else [value] for name, value in fields.items()]
    return [make_algorithm(cls.name, dict(zip(fields, each, strict=True))) for each in itertools.product(*choices)]


def task_name(options: argparse.Namespace) -> str | None:
    """What a report groups seeds by: the task, with what was changed about its recipe."""
    from demosift.tasks.recipes import task_label

    if not options.task:
        return options.task
    changes = [f"pool {options.pool}"] if options.pool != 20 else []
    changes += ["disjoint"] if options.disjoint else []
    label = task_label(options.task, options.expert_trajectories, not options.expert_observations)
    return ", ".join([label, *changes])


def evaluation_environment(options: argparse.Namespace, data: Demonstrations) -> EnvironmentSpec | None:
    """Where to evaluate. The user's choice must fit the data; the data's own environment may not be installed here."""
    from demosift.simulation.environments import SHORT_NAMES, read_arguments, resolve, spaces, stored

    own, in_file = read_arguments(options.env_arg or ()), options.request.values
    try:
        if options.env and "env" not in in_file:
            environment = resolve(options.env, **own)
        else:  # a configuration file is data, too
            named = SHORT_NAMES.get(options.env, EnvironmentSpec(options.env)) if options.env else data.environment
            if named is None and own:
                raise InputError("--env-arg: the data do not say which environment they are from: name one with --env")
            if named is None:
                return None
            if "env-arg" in in_file:
                named, own = EnvironmentSpec(named.id, {**named.kwargs, **own}), {}
            environment = stored(named, **own)
            if options.env or options.env_arg:
                environment = resolve(environment.id, **environment.kwargs)
        sizes = spaces(environment)
    except InputError as error:
        if options.env or options.env_arg:
            raise
        say(f"not evaluating: {error}")
        return None
    found = (data.expert.obs_dim, data.expert.action_dim)
    if found != sizes:
        raise InputError(
            f"{data.expert.source}: has {found[0]} observations and {found[1]} actions, "
            f"but {environment.id} has {sizes.obs_dim} and {sizes.action_dim}"
        )
    return environment


def describe_run(out: str, last: list[dict[str, Any]]) -> str:
    lines = []
    for row in last:
        numbers = {**row, "return": sum(row["returns"]) / len(row["returns"])} if "returns" in row else row
        shown = (f"{key} {value:.4g}" for key, value in numbers.items() if isinstance(value, float))
        lines.append(f"member {row['member']}: " + ", ".join(shown))
    return "\n".join([*lines, f"{out}: config.json, metrics.jsonl, policy.safetensors, run.toml"])


def read_training_data(options: argparse.Namespace, seeds: list[int]) -> list[Demonstrations]:
    from demosift.data import load
    from demosift.tasks.recipes import make_task

    if options.task and (options.expert or options.supplementary):
        raise InputError("train: give --task, or --expert and --supplementary, not both")
    if options.task and (options.bad or options.bad_episodes):
        raise InputError("train: --bad and --bad-episodes go with --expert and --supplementary")
    scores = getattr(options, "scores", None)
    if scores and not (options.expert and options.supplementary):
        raise InputError("train: --scores: needs --expert and --supplementary, the files that were scored")
    if options.task:
        recipe = {"pool": options.pool, "replay": options.replay, "disjoint": options.disjoint}
        recipe["experts"] = options.expert_trajectories
        tasks = [make_task(options.task, seed, **recipe) for seed in seeds]
        return [dataclasses.replace(task, expert_actions=not options.expert_observations) for task in tasks]
    if not options.expert:
        raise InputError("train: needs --task TASK, or --expert FILE (and --supplementary FILE for all but bc)")
    supplementary, bad = bad_set(options)
    if scores and bad is not None:
        raise InputError("train: --scores: bad data no longer change these weights; give them to score")
    unknown = options.expert_observations
    data = load(options.expert, supplementary, actions=options.actions, expert_observations=unknown, bad=bad)
    if scores:
        from demosift.sift.filtering import with_scores

        data = with_scores(data, options.expert, options.supplementary, scores)
    return [data]


def bad_set(options: argparse.Namespace) -> "tuple[Source | None, Source | None]":
    """The supplementary set without the episodes that are known to be bad, and these; or a bad set of its own."""
    from demosift.data import take_episodes, without_episodes
    from demosift.data.decisions import read_episodes

    if options.bad and options.bad_episodes:
        raise InputError("train: give --bad or --bad-episodes, not both")
    if not options.bad_episodes:
        return options.supplementary, options.bad
    if not options.supplementary:
        raise InputError("train: --bad-episodes: are episodes of the supplementary data; give --supplementary")
    chosen = read_episodes(without_episodes(options.supplementary), options.bad_episodes, "drop")
    options.bad_episodes = str(chosen)  # as run.toml tells it: a file of numbers may change
    taken, others = take_episodes(options.supplementary, chosen)
    return others, taken


def check_same_data(origin: str, data: list[Demonstrations]) -> None:
    """A run is repeated on the data that it had."""
    from demosift.learning.fit import describe_data
    from demosift.results.run import RunFolder, first_difference

    folder = RunFolder(origin)
    if first_difference({"data": folder.read_config().get("data")}, {"data": [describe_data(each) for each in data]}):
        raise InputError(
            f"{origin}: its data changed since that run; --config {folder.request} trains on them as they are"
        )


def run_evaluate(options: argparse.Namespace) -> Answer:
    from demosift.simulation.evaluation import evaluate

    policy, env = chosen_policy(options, member=options.member)
    result = evaluate(policy, env=env, episodes=options.episodes, seed=options.seed)
    return result.to_json(), str(result)


def scored_sets(options: argparse.Namespace) -> tuple[str | None, str, str | None]:
    """Expert, supplementary and bad data: files of their own, or episodes of one dataset."""
    from demosift.data import episodes_where, name_episodes
    from demosift.data.decisions import read_episodes

    named = {"--expert": options.expert, "--expert-episodes": options.expert_episodes}
    named["--expert-where"] = options.expert_where
    given = [flag for flag, value in named.items() if value]
    if len(given) != 1:
        raise InputError(
            f"score: give one of {', '.join(named)}{' (--expert none: nobody knows)' if not given else ''}"
        )
    if (options.dataset is None) == (options.supplementary is None):
        raise InputError("score: give a dataset, or --supplementary with --expert")
    if options.bad and options.bad_episodes:
        raise InputError("score: give --bad or --bad-episodes, not both")
    expert = None if options.expert == "none" else options.expert
    if options.dataset is None:
        if options.expert_episodes or options.expert_where or options.bad_episodes:
            raise InputError("score: episodes are chosen from a dataset: demosift score DATASET --expert-episodes ...")
        return expert, options.supplementary, options.bad
    dataset, taken = options.dataset, []
    if options.expert_episodes or options.expert_where:
        if options.expert_where:
            chosen = episodes_where(dataset, options.expert_where)
        else:
            chosen = read_episodes(dataset, options.expert_episodes, "keep")
        expert = name_episodes(dataset, chosen)
        taken.append(chosen)
    bad = options.bad
    if options.bad_episodes:
        chosen = read_episodes(dataset, options.bad_episodes, "drop")
        if taken and (both := taken[0].overlap(chosen)) is not None:
            raise InputError(f"score: episode {both} is named both as the expert's and as bad")
        bad = name_episodes(dataset, chosen)
        taken.append(chosen)
    for others in taken[1:]:
        taken[0] = taken[0].joined(others)
    return expert, name_episodes(dataset, taken[0].others) if taken else dataset, bad


def run_score(options: argparse.Namespace) -> Answer:
    from demosift.sift.scoring import score

    expert, supplementary, bad = scored_sets(options)
    scored = score(
        expert,
        supplementary,
        bad=bad,
        out=options.out,
        scorer=options.scorer,
        members=options.members,
        folds=options.folds,
        seed=options.seed,
        threshold=options.threshold,
        actions=options.actions,
        features=features_of(options),
        state=not options.without_state,
        expert_observations=options.expert_observations,
        task_column=options.task_column,
        engine=options.engine,
        address=options.address,
    )
    written = f"{options.out}: scores.parquet, episodes.parquet, summary.json, report.html"
    return {"out": options.out, **scored.summary}, f"{scored}\n{written}"


def features_of(options: argparse.Namespace) -> "Cameras | list[str] | None":
    """What the flags about pictures ask for; a flag that would do nothing is refused."""
    from demosift.vision.embedding import Cameras

    settings = {"names": options.cameras, "encoder": options.encoder, "every": options.every, "cache": options.cache}
    settings |= {"components": options.components, "size": options.image_size}
    given = {name: value for name, value in settings.items() if value is not None}
    if options.features is not None:
        if given:
            raise InputError("score: give --features, or --encoder and --cameras, not both")
        return options.features
    if given and not (options.encoder or options.cameras):
        raise InputError("score: flags about pictures need --encoder (default, or an ONNX file) or --cameras")
    return Cameras(**given) if given else None


def run_filter(options: argparse.Namespace) -> Answer:
    from demosift.data import reserve_target
    from demosift.progress import waiting
    from demosift.sift.filtering import filter_dataset

    with waiting(f"filtering {options.data}"), reserve_target(options.out):
        done = filter_dataset(
            options.data,
            options.scores,
            options.out,
            threshold=options.threshold,
            top=options.top,
            episodes=options.episodes,
            filter_key=options.filter_key,
            weights=options.weights,
            frames=options.frames,
            decisions=options.decisions,
        )
    return dataclasses.asdict(done), str(done)


def run_export(options: argparse.Namespace) -> Answer:
    from demosift.files import reserved
    from demosift.progress import waiting
    from demosift.results.export import export_onnx

    with waiting(f"exporting {options.policy}"), reserved(options.out):
        _, env = chosen_policy(options)
        done = export_onnx(options.policy, options.out, env=env, member=options.member or 0, data=options.data)
    return dataclasses.asdict(done), str(done)


def run_reproduce(options: argparse.Namespace) -> Answer:
    from demosift.experiments.d4rl import ENVS
    from demosift.experiments.presets import COMPARISONS, PENALTIES, Request, default_schedule, parse_settings
    from demosift.experiments.reproduce import reproduce
    from demosift.learning.cloning import RECIPES
    from demosift.simulation.environments import IN_THE_PAPER

    compares = options.what in COMPARISONS
    for flag, value, needed in (("--piles", options.piles, compares), ("--data", options.data, options.what == "d4rl")):
        if value is not None and not needed:
            raise InputError(f"reproduce: {flag}: is for {'successors and d4rl' if flag == '--piles' else 'd4rl'}")
    recipe = {} if compares else RECIPES[options.recipe or "paper"]
    request = Request(
        envs=tuple(options.envs or (ENVS if options.what == "d4rl" else IN_THE_PAPER)),
        seeds=tuple(seeds_of(options)),
        iterations=options.iterations,
        schedule=default_schedule(options.iterations, options.evaluate_every, options.episodes, options.early_episodes),
        methods=tuple(options.methods) if options.methods else None,
        penalties=tuple(options.gradient_penalties or (() if compares else PENALTIES)),
        settings={**recipe, **parse_settings(options.set)},
        recipes=(options.recipe,) if options.recipe else ("paper", "robust"),
        piles=tuple(options.piles) if options.piles else None,
        files=options.data,
        experts=options.expert_trajectories,
        ensemble=options.ensemble,
        pool=options.pool,
        disjoint=options.disjoint,
        replay=options.replay,
        precision=options.precision,
        expert_actions=not options.expert_observations,
    )
    answer, text = reproduce(
        options.what,
        options.out,
        request,
        engine=options.engine,
        address=options.address,
        time_limit=options.time_limit,
        max_members=options.max_members,
        num_workers=options.workers,
        add=options.add,
        checkpoint_seconds=options.checkpoint_seconds,
    )
    if answer.get("failed"):
        say(f"{len(answer['failed'])} of {answer['cells']} cells failed")
    return answer, text


def run_theory(options: argparse.Namespace) -> Answer:
    from demosift.theory.lab import Lab, write_theory

    lab = Lab(options.seed, options.scale, tuple(options.claims), options.processes)
    return write_theory(options.out, lab)


def run_report(options: argparse.Namespace) -> Answer:
    from demosift.experiments.presets import row_facts
    from demosift.files import reserved
    from demosift.report.page import write_report
    from demosift.report.sift_page import write_sift_page
    from demosift.results.folder import REPORT
    from demosift.results.scores import is_score_folder

    if not Path(options.folder).is_dir():
        raise InputError(f"{options.folder}: no such folder")
    with reserved(Path(options.folder, REPORT)):
        page = (write_sift_page if is_score_folder(options.folder) else write_report)(options.folder, row_facts())
    return {"page": str(page)}, str(page)


def run_bench(options: argparse.Namespace) -> Answer:
    from demosift.files import reserved

    with reserved(options.out) if options.out else nullcontext():
        return measure(options)


def measure(options: argparse.Namespace) -> Answer:
    if options.what == "scores":
        from demosift.bench.scores import bench_scores

        asked = (options.scorers, options.envs, options.seeds, options.replay, options.measures, options.out)
        return bench_scores(*asked)
    if options.what == "scale":
        from demosift.bench.scale import bench_scale

        where = {"engines": options.engine, "address": options.address, "folder": options.folder}
        return bench_scale(options.rows, options.out, **where)
    if options.what == "rewards":
        from demosift.bench.rewards import bench_rewards

        return bench_rewards(options.rows, options.out)
    if options.what == "user":
        from demosift.bench.user import bench_user

        return bench_user(options.rows, options.out)
    if options.what == "recipe":
        from demosift.bench.recipe import bench_recipe

        return bench_recipe(options.envs, options.seed, options.iterations, options.ensemble, options.out)
    from demosift.bench.speed import bench

    asked = (options.algorithms, options.members, options.seconds, options.collect, options.precision, options.out)
    return bench(*asked)


def run_completion(options: argparse.Namespace) -> Answer:
    from demosift.cli.completion import write_script
    from demosift.cli.main import DEFAULT_ALGORITHM, make_parser

    script = write_script(options.shell, make_parser(["train"]), DEFAULT_ALGORITHM)
    return {"shell": options.shell, "script": script}, script
