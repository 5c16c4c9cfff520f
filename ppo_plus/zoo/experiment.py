"""An experiment: everything that defines one training run, resolved and checked; its environments and its models."""

import re
import sys
from collections.abc import Callable, Collection
from contextlib import closing
from copy import deepcopy
from dataclasses import dataclass, field, fields, replace
from functools import partial, reduce
from inspect import signature
from pathlib import Path
from typing import Any, TypeVar

import gymnasium as gym
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper, VecFrameStack, VecNormalize, unwrap_vec_normalize
from tqdm import tqdm

from ppo_plus import PPO_Plus, SupervisedVecEnv
from ppo_plus.envs.agents import AgentsVecEnv
from ppo_plus.envs.checks import check_spaces
from ppo_plus.envs.lean_vec_env import LeanVecEnv
from ppo_plus.envs.make_vec import VEC_ENVS, with_dicts
from ppo_plus.envs.normalization import IN_POLICY
from ppo_plus.process import torch_threads
from ppo_plus.recommendations import policy_arguments, settings_for
from ppo_plus.require import require_one_of
from ppo_plus.saving.files import file_name
from ppo_plus.saving.format.container import with_suffix
from ppo_plus.saving.statistics import find_statistics, put_statistics, read_statistics, statistics_path
from ppo_plus.zoo import hyperparams
from ppo_plus.zoo.hyperparams import Value, errors_of, format_literal, plain, positive_int, read_arguments, read_literal
from ppo_plus.zoo.installation import ALLOWED_PACKAGES, Packages, find_env, import_class, is_atari
from ppo_plus.zoo.runs import RunFolder


@dataclass(frozen=True)
class Part:
    """A class that a settings file names, with the arguments to call it with."""

    name: str
    cls: type
    kwargs: dict[str, Any]

    def __call__(self, *args: gym.Env | VecEnv) -> Any:
        return self.cls(*args, **self.kwargs)


@dataclass(frozen=True)
class Experiment:
    """Everything that defines a training run. The fields up to ``hyperparams`` are keys of a settings file."""

    env_id: str
    n_timesteps: int  # number of environment steps, over all environments together
    n_envs: int = 1
    policy: str | type = "MlpPolicy"
    normalize: dict[str, Any] | None = None  # arguments of `VecNormalize`; `None` for raw observations and rewards
    frame_stack: int | None = None  # number of observations to stack; `None` for no stacking
    env_wrapper: tuple[Part, ...] = ()  # wrappers of each environment, the innermost first
    vec_env_wrapper: tuple[Part, ...] = ()  # wrappers of the vector environment, the innermost first
    callback: tuple[Part, ...] = ()
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    monitor_kwargs: dict[str, Any] = field(default_factory=dict)
    policy_kwargs: dict[str, Any] = field(default_factory=dict)
    hyperparams: dict[str, Any] = field(default_factory=dict)  # the other arguments of `PPO_Plus`
    eval_env_kwargs: dict[str, Any] | None = None  # arguments of evaluation environments; `None` for `env_kwargs`
    deterministic: bool | None = None  # whether evaluation takes the most likely actions; `None`: as rl_zoo3 does
    seed: int = 0
    device: str = "auto"
    vec_env: str = "dummy"  # `"dummy"` steps the environments one after another, `"subproc"` in separate processes

    def __post_init__(self) -> None:
        require_one_of("vec_env", self.vec_env, VEC_ENVS)

    def replace(self, **changes: Any) -> "Experiment":
        """A copy with other values of some fields, which are not checked."""
        return replace(self, **changes)

    def with_hyperparams(self, settings: dict[str, Any], packages: Packages = ALLOWED_PACKAGES) -> "Experiment":
        """A copy with some settings changed; ``policy_kwargs`` are merged key by key.

        :raises ValueError: unknown key or bad value
        """
        settings = {"n_timesteps": self.n_timesteps, **settings}
        changed = parse_settings(self.env_id, settings, packages, check_names=True)
        named = {name: getattr(changed, name) for name in FIELDS if name in settings}
        merged = {name: {**getattr(self, name), **getattr(changed, name)} for name in ("policy_kwargs", "hyperparams")}
        return self.replace(**{**named, **merged})

    def settings(self) -> dict[str, Any]:
        """The experiment as an entry of a settings file, which :func:`parse_settings` and rl_zoo3 can read."""
        policy, written = self.policy, {name: getattr(self, name) for name in FIELDS}
        written |= {
            "policy": policy if isinstance(policy, str) else f"{policy.__module__}.{policy.__qualname__}",
            "normalize": self.normalize is not None and (plain(self.normalize) or True),
            "env_kwargs": plain(self.env_kwargs),
            "monitor_kwargs": self.monitor_kwargs and format_literal(self.monitor_kwargs),
            "policy_kwargs": self.policy_kwargs and format_literal(self.policy_kwargs),
        }
        for name in PARTS:
            written[name] = [{part.name: plain(part.kwargs)} if part.kwargs else part.name for part in written[name]]
        given = {name: value for name, value in written.items() if value}
        return given | {name: plain(value) for name, value in self.hyperparams.items()}

    def beside_settings(self) -> dict[str, Any]:
        """The fields that are not part of a settings file."""
        return {name: getattr(self, name) for name in BESIDE_SETTINGS}

    def for_each_process(self, n_processes: int, has_model: bool = False) -> "Experiment":
        """The part of one of several processes, with its share of the environments and of each minibatch.

        :param has_model: whether a saved model is trained further: its batch size may be a share already
        """
        if n_processes == 1:
            return self
        if has_model and "batch_size" not in self.hyperparams:
            raise ValueError("-i in several processes: add -params batch_size:N, the size over all processes")
        batch_size = self.hyperparams.get("batch_size", 64)
        for name, value in (("n_envs", self.n_envs), ("batch_size", batch_size)):
            if value % n_processes:
                raise ValueError(f"{name}={value} cannot be divided among {n_processes} processes")
        changed = {**self.hyperparams, "batch_size": batch_size // n_processes}
        return self.replace(n_envs=self.n_envs // n_processes, hyperparams=changed)

    def make_callbacks(self) -> list[BaseCallback]:
        """New instances of the callbacks that the settings name."""
        return [part() for part in self.callback]

    @property
    def deterministic_eval(self) -> bool:
        """Whether evaluation takes the most likely actions: by default as in rl_zoo3, not for Atari and MiniGrid."""
        if self.deterministic is not None:
            return self.deterministic
        spec = gym.registry.get(env_id := self.env_id.rpartition(":")[2])
        return not is_atari(env_id) and "minigrid" not in str(spec and spec.entry_point)


#: Fields of :class:`Experiment` that a settings file does not set.
BESIDE_SETTINGS = ("eval_env_kwargs", "deterministic", "seed", "device", "vec_env")
#: Keys of a settings file that are fields of :class:`Experiment`; the other keys are arguments of ``PPO_Plus``.
FIELDS = tuple(f.name for f in fields(Experiment) if f.name not in ("env_id", "hyperparams", *BESIDE_SETTINGS))
#: Keys that name classes to import, and the base class of each.
PARTS = {"env_wrapper": gym.Wrapper, "vec_env_wrapper": VecEnvWrapper, "callback": BaseCallback}
#: Arguments of ``PPO_Plus`` that are not hyperparameters.
OF_THE_RUN = {"policy", "policy_kwargs", "env", "seed", "device", "verbose", "tensorboard_log", "_init_setup_model"}


def load_experiment(
    env_id: str,
    path: str | Path | None = None,
    overrides: dict[str, Any] | None = None,
    *,
    variant: str | None = None,
    packages: Packages = ALLOWED_PACKAGES,
    **run: Any,
) -> Experiment:
    """The experiment that a settings file describes for an environment, with every name looked up and checked.

    :param path: YAML file; ``None`` for the package's own
    :param overrides: settings that replace those of the file
    :param variant: use the entry ``env_id/variant`` of the file
    :param packages: packages that the file may import wrappers, callbacks and policies from; ``None``: any
    :param run: fields that a file does not set: :data:`BESIDE_SETTINGS`
    :raises ValueError: invalid YAML, no entry, unknown key or bad value; the message names file, entry and key
    """
    source, overrides = hyperparams.builtin_file() if path is None else Path(path), overrides or {}
    name, entry = hyperparams.read_entry(env_id, source, variant)
    # Overrides are checked alone first, so that the message does not blame the file for them.
    parse_settings(env_id, {"n_timesteps": 1, **overrides}, packages, check_names=True)
    with errors_of(f"{source}, {name}"):
        experiment = parse_settings(env_id, {**entry, **overrides}, packages, check_names=True)
    return experiment.replace(**run)


def saved_experiment(folder: RunFolder, packages: Packages = ALLOWED_PACKAGES) -> Experiment:
    """The experiment of a run, which rl_zoo3 may have trained."""
    settings, arguments = hyperparams.read_mapping(folder.settings / "config.yml"), folder.arguments()
    if arguments.get("env_kwargs"):
        settings["env_kwargs"] = arguments["env_kwargs"]
    run = {name: arguments[name] for name in BESIDE_SETTINGS if name in arguments}
    if (given := run.get("eval_env_kwargs")) is not None:
        run["eval_env_kwargs"] = read_arguments("eval_env_kwargs", given)
    return parse_settings(folder.env_id, settings, packages).replace(**run)


def parse_settings(
    env_id: str, settings: dict[str, Any], packages: Packages = ALLOWED_PACKAGES, check_names: bool = False
) -> Experiment:
    """Read one entry of a settings file.

    :param check_names: whether it must be for PPO_Plus; else it may be another algorithm's
    :raises ValueError: unknown key or bad value
    """
    if check_names:
        # First: a key that seems to be missing may be misspelled.
        for name in settings:
            hyperparams.require_known(name, hyperparameter_names().union(FIELDS))
    readers: dict[str, Callable[[str, Value], Any]] = {
        "n_timesteps": positive_int,
        "n_envs": positive_int,
        "policy": partial(_policy, packages),
        "normalize": _normalize,
        "frame_stack": lambda name, value: None if value is None else positive_int(name, value),
        **dict.fromkeys(PARTS, partial(_parts, packages)),
        "env_kwargs": read_arguments,
        # `Monitor` adds tuples to these.
        "monitor_kwargs": lambda name, value: {
            key: tuple(item) if isinstance(item, list) else item for key, item in read_arguments(name, value).items()
        },
        "policy_kwargs": partial(_policy_kwargs, packages),
    }
    # In quotes, None is text.
    settings = {name: None if value == "None" else value for name, value in {"n_timesteps": None, **settings}.items()}
    named = {name: read(name, settings[name]) for name, read in readers.items() if name in settings}
    rest = {name: _hyperparameter(packages, name, value) for name, value in settings.items() if name not in readers}
    return Experiment(env_id, **named, hyperparams=rest)


def hyperparameter_names() -> set[str]:
    """Arguments of ``PPO_Plus`` that a settings file may set as hyperparameters."""
    return set(signature(PPO_Plus).parameters) - OF_THE_RUN


def _policy(packages: Packages, _name: str, value: Value) -> str | type:
    if isinstance(value, str) and "." in value:
        return import_class(value, BasePolicy, packages)
    return value if isinstance(value, type) else str(value)


def _parts(packages: Packages, name: str, value: Value) -> tuple[Part, ...]:
    """One class or a list of classes, each a dotted name or a mapping from it to keyword arguments."""
    parts = []
    for item in value if isinstance(value, list) else [] if value is None else [value]:
        mapping = {item: None} if isinstance(item, str) else item
        if not isinstance(mapping, dict) or len(mapping) != 1 or not re.fullmatch(r"[\w.]+\.\w+", str(*mapping)):
            form = "a dotted name, or a mapping of one to its arguments, indented below it, or name: {argument: value}"
            raise ValueError(f"{name}: {item!r} must be {form}")
        with errors_of(name):
            for dotted, kwargs in mapping.items():
                parts.append(Part(dotted, import_class(dotted, PARTS[name], packages), read_arguments(dotted, kwargs)))
    return tuple(parts)


def _normalize(name: str, value: Value) -> dict[str, Any] | None:
    value = read_literal(name, value)
    if value is None or isinstance(value, bool):
        return {} if value else None
    return read_arguments(name, value)


def _hyperparameter(packages: Packages, name: str, value: Value) -> Value:
    """A number (``2e3`` is whole if the argument's default is a whole number), a word, a call such as
    ``ColoredNoise(beta=0.5)``, a list of these, or arguments."""
    if str(name).endswith("_kwargs"):
        return read_arguments(name, value, packages)
    if isinstance(value, str):
        return read_literal(name, value) if "(" in value else value
    if isinstance(value, list):
        return [_hyperparameter(packages, name, item) for item in value]
    parameter = signature(PPO_Plus).parameters.get(name)
    if isinstance(value, float) and value.is_integer() and parameter is not None and type(parameter.default) is int:
        return int(value)
    return value


def _policy_kwargs(packages: Packages, name: str, value: Value) -> dict[str, Any]:
    arguments = read_arguments(name, value, packages)
    for key, item in arguments.items():
        is_class = str(key).endswith(("_fn", "_class")) and "." in str(item)
        if isinstance(item, str) and (is_class or item.startswith(("[", "{", "dict("))):
            arguments[key] = read_literal(name, item, packages)
    return arguments


#: Added to the experiment's seed for evaluation environments, so that no episode is both trained and evaluated on.
EVAL_SEED = 2**31
#: One environment, or several.
Wrapped = TypeVar("Wrapped", gym.Env, VecEnv)


def make_envs(
    experiment: Experiment,
    n_envs: int | None = None,
    seed: int | None = None,
    *,
    evaluation: bool = False,
    monitor_dir: Path | None = None,
    append: bool = False,
    first: int = 0,
    restarts: int = 0,
    timeout: float | None = None,
    n_workers: int | str | None = None,
) -> VecEnv:
    """The environments, in rl_zoo3's order: wrappers, vector wrappers, normalization, stacking, transposed images.

    :param n_envs: how many; ``None``: the experiment's number for training, one for evaluation
    :param seed: seed of the first one; ``None``: the experiment's, plus :data:`EVAL_SEED` for evaluation
    :param evaluation: single environments with unnormalized rewards and fixed statistics
    :param monitor_dir: folder for the ``monitor.csv`` files, which are overwritten unless you ``append``
    :param first: number of the first environment, if other processes have others; it shifts seeds and file names
    :param restarts: how many failed environments to replace by new ones; more than 0: in processes
    :param timeout: seconds that an environment may take for a step or a reset, in processes; ``None``: no limit
    :param n_workers: number of processes, as of :class:`~ppo_plus.SupervisedVecEnv`
    """
    if n_envs is None:
        n_envs = 1 if evaluation else experiment.n_envs
    if seed is None:
        seed = (experiment.seed + EVAL_SEED) % 2**32 if evaluation else experiment.seed
    own = experiment.eval_env_kwargs if evaluation else None
    env_kwargs = deepcopy(experiment.env_kwargs if own is None else own)
    make: Callable[..., gym.Env] = partial(gym.make, find_env(experiment.env_id))
    wrappers = experiment.env_wrapper
    kind: dict[str, Any] = {"vec_env_cls": LeanVecEnv}
    if experiment.vec_env == "subproc" or restarts > 0 or timeout is not None:
        # A mistake raises its own error here; in a worker process it would only end the process.
        with closing(_wrap(make(**env_kwargs), wrappers)) as single:
            check_spaces(single)
        # Above the progress bar, if there is one.
        report = partial(tqdm.write, file=sys.stderr)
        supervision = {"restarts": restarts, "timeout": timeout, "report": report, "n_workers": n_workers}
        kind = {"vec_env_cls": SupervisedVecEnv, "vec_env_kwargs": supervision}
    elif n_workers is not None:
        raise ValueError(f"--env-workers {n_workers} needs --vec-env subproc, --env-timeout or --restart-envs")
    is_game = experiment.env_id.startswith("pettingzoo:")
    env: VecEnv = make_vec_env(
        make,
        n_envs,
        seed=seed + first,
        start_index=first,
        # Whole games are not episodes of agents.
        monitor_dir=None if monitor_dir is None or is_game else str(monitor_dir),
        monitor_kwargs=deepcopy(experiment.monitor_kwargs) | ({"override_existing": False} if append else {}),
        wrapper_class=lambda single: _wrap(single, wrappers),
        env_kwargs=env_kwargs,
        **kind,
    )
    if is_game:
        env = AgentsVecEnv(env)
    env = _wrap(with_dicts(env), experiment.vec_env_wrapper)
    if experiment.normalize is not None:
        arguments = dict(experiment.normalize)
        # Rewards are scaled by the standard deviation of the discounted return, with the algorithm's discount.
        if "gamma" in experiment.hyperparams:
            arguments["gamma"] = experiment.hyperparams["gamma"]
        if evaluation:
            arguments.update(training=False, norm_reward=False)
        env = VecNormalize(env, **arguments)
    if experiment.frame_stack is not None:
        env = VecFrameStack(env, experiment.frame_stack)
    # The algorithm does the same with its training environments.
    return PPO_Plus._wrap_env(env)


def _wrap(env: Wrapped, parts: tuple[Part, ...]) -> Wrapped:
    return reduce(lambda wrapped, part: part(wrapped), parts, env)


def make_model(experiment: Experiment, env: VecEnv, **arguments: Any) -> PPO_Plus:
    """A new model, with further ``arguments`` and the errors of ``PPO_Plus``."""
    settings = deepcopy({"policy_kwargs": experiment.policy_kwargs, **experiment.hyperparams})
    arguments = {**settings, "seed": experiment.seed, "device": experiment.device, **arguments}
    # Orthogonal initialization rounds differently on several threads; the weights should depend on the seed only.
    with torch_threads(1):
        return PPO_Plus(experiment.policy, env, **arguments)


def with_recommended(experiment: Experiment, given: Collection[str], policy_alone: bool = False) -> Experiment:
    """An experiment with the settings that are recommended for its environment, but for those that are ``given``.

    :param policy_alone: take nothing but the policy and what the observations need
    """
    with closing(make_envs(experiment.replace(vec_env="dummy"), 1)) as env:
        n_rows = experiment.n_envs * env.num_envs
        found = policy_arguments(env) if policy_alone else settings_for(env, n_rows, experiment.n_timesteps)
    found["policy_kwargs"] = found.get("policy_kwargs", {}) | experiment.policy_kwargs
    taken = {*given, *(IN_POLICY if "normalize" in given and experiment.normalize is None else ())} - {"policy_kwargs"}
    return experiment.with_hyperparams({name: value for name, value in found.items() if name not in taken})


def load_model(
    path: Path, experiment: Experiment, env: VecEnv, trust_pickle: bool = False, **arguments: Any
) -> PPO_Plus:
    """A saved model, to be trained further with the experiment's hyperparameters. Its networks stay unchanged.

    :param env: its training environments; they get the statistics saved with the model
    :param trust_pickle: unpickle SB3's files, which runs code, if they cannot be read otherwise
    """
    if not with_suffix(path).is_file():
        raise FileNotFoundError(f"there is no model {path}: give a file like {path / file_name(experiment.env_id)}.zip")
    source = find_statistics(path, path.parent / file_name(experiment.env_id))
    if unwrap_vec_normalize(env) is None and source is not None:
        problem = f"{path} was trained in a VecNormalize, whose statistics are {source}"
        remedy = "give the run's settings (-conf FILE), or add -params normalize:True"
        raise ValueError(f"{problem}, but the settings do not normalize: {remedy}")
    load_statistics(path, env, experiment.env_id)
    changes = {**deepcopy(experiment.hyperparams), "seed": experiment.seed, **arguments}
    model = PPO_Plus.load(path, env=env, device=experiment.device, trust_pickle=trust_pickle, **changes)
    if (normalize := unwrap_vec_normalize(env)) is not None and "gamma" not in (experiment.normalize or {}):
        normalize.gamma = model.gamma  # which the settings may not name
    return model


def load_statistics(path: Path, env: VecEnv, env_id: str) -> None:
    """Load the statistics that were saved with a model into environments, if these normalize.

    :raises FileNotFoundError: there are none
    :raises ValueError: they are damaged, or not finite, or do not fit the observations
    """
    if (normalize := unwrap_vec_normalize(env)) is not None:
        if (source := find_statistics(path, path.parent / file_name(env_id))) is None:
            problem = f"the settings normalize, and there are no statistics {statistics_path(path)} of the model"
            raise FileNotFoundError(f"{problem}: copy them there, or leave out normalize")
        put_statistics(normalize, read_statistics(source), source)
