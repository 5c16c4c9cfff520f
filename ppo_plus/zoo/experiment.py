"""An experiment: everything that defines one training run, resolved and checked.

How a tuner uses it::

    experiment = load_experiment("Pendulum-v1", seed=3)      # the YAML's entry, every name looked up
    trial = experiment.with_hyperparams({"gamma": 0.95, "policy_kwargs": {"net_arch": [64]}})  # merged into the YAML's
    env = make_envs(trial)                                   # ppo_plus.zoo.envs: n_envs environments, normalized
    eval_env = make_envs(trial, n_envs=5, evaluation=True)   # other seeds; statistics are the training ones
    model = make_model(trial, env)                           # ppo_plus.zoo.models
    evaluation = EvalAfterUpdates(eval_env, eval_freq=10_000, n_eval_episodes=5)  # ppo_plus.zoo.callbacks
    model.learn(trial.n_timesteps, callback=[evaluation, *make_callbacks(trial)])
    yaml.safe_dump({trial.env_id: trial.settings()})         # an entry that rl_zoo3 reads as well
"""

import ast
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium as gym

from ppo_plus import MODULES
from ppo_plus.zoo.hyperparams import (
    STRATEGIES,
    builtin_file,
    format_literal,
    parse_literal,
    positive_int,
    read_entry,
    require_mapping,
)
from ppo_plus.zoo.registry import ALLOWED_PACKAGES, import_class, is_atari

if TYPE_CHECKING:
    from ppo_plus.ranks import Ranks


@dataclass(frozen=True)
class Part:
    """A class that a settings file names, and the arguments that it is called with.

    :param name: its dotted name
    :param cls: the class
    :param kwargs: keyword arguments
    """

    name: str
    cls: type
    kwargs: dict[str, Any]

    def __call__(self, *args: Any) -> Any:
        return self.cls(*args, **self.kwargs)


@dataclass(frozen=True)
class Experiment:
    """Everything that defines a training run. The first fields are keys of a settings file, with their names.

    :param env_id: Gymnasium environment id
    :param n_timesteps: environment steps to train for, over all environments together
    :param n_envs: number of environments stepped side by side
    :param policy: name of the policy class, or the class itself
    :param normalize: arguments of ``VecNormalize``; ``None`` for raw observations and rewards
    :param frame_stack: number of observations stacked; ``None`` for no stacking
    :param env_wrapper: wrappers of each environment, the innermost first
    :param vec_env_wrapper: wrappers of the vector environment, the innermost first
    :param callback: callbacks of the training
    :param env_kwargs: arguments of the environment
    :param monitor_kwargs: arguments of ``Monitor``
    :param policy_kwargs: arguments of the policy
    :param hyperparams: the other arguments of ``PPO_Plus``
    :param eval_env_kwargs: arguments of evaluation environments; ``None`` for ``env_kwargs``
    :param seed: seed of environments, weights and exploration
    :param device: device of the model
    :param vec_env: ``"dummy"`` steps the environments one after another, ``"subproc"`` in processes of their own,
        ``"gymnasium"`` and ``"envpool"`` all at once, where Gymnasium or EnvPool can (training environments only);
        ``"auto"`` is the fastest of them that is the same task, by the rule in :mod:`ppo_plus.rollout.fastest`
    """

    env_id: str
    n_timesteps: int
    n_envs: int = 1
    policy: str | type = "MlpPolicy"
    normalize: dict[str, Any] | None = None
    frame_stack: int | None = None
    env_wrapper: tuple[Part, ...] = ()
    vec_env_wrapper: tuple[Part, ...] = ()
    callback: tuple[Part, ...] = ()
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    monitor_kwargs: dict[str, Any] = field(default_factory=dict)
    policy_kwargs: dict[str, Any] = field(default_factory=dict)
    hyperparams: dict[str, Any] = field(default_factory=dict)
    eval_env_kwargs: dict[str, Any] | None = None
    seed: int = 0
    device: str = "auto"
    vec_env: str = "dummy"

    def replace(self, **changes: Any) -> "Experiment":
        """The experiment with other values of some fields, which are taken as they are."""
        return replace(self, **changes)

    def with_hyperparams(
        self, settings: dict[str, Any], packages: Collection[str] | None = ALLOWED_PACKAGES
    ) -> "Experiment":
        """The experiment with some settings changed, each written as in a settings file.

        :param settings: any keys of a settings file; ``policy_kwargs`` are merged into the experiment's, key by key
        :param packages: see :func:`parse_settings`
        :raises ValueError: unknown key or bad value
        """
        changed = parse_settings(self.env_id, {"n_timesteps": self.n_timesteps, **settings}, packages)
        named = {name: getattr(changed, name) for name in SETTINGS if name in settings}
        merged = {name: {**getattr(self, name), **getattr(changed, name)} for name in ("policy_kwargs", "hyperparams")}
        result = self.replace(**{**named, **merged})
        result.check()
        return result

    def settings(self) -> dict[str, Any]:
        """The experiment as plain data, in the format of a settings file: :func:`parse_settings` reads it back, and so
        does rl_zoo3. Seed, device and kind of vector environment are no part of it."""
        plain: dict[str, Any] = {
            "n_timesteps": self.n_timesteps,
            "n_envs": self.n_envs,
            "policy": self.policy if isinstance(self.policy, str) else _dotted_name(self.policy),
        }
        if self.normalize is not None:
            plain["normalize"] = _plain(self.normalize) or True
        if self.frame_stack is not None:
            plain["frame_stack"] = self.frame_stack
        for name in PARTS:
            if getattr(self, name):
                plain[name] = [
                    {part.name: _plain(part.kwargs)} if part.kwargs else part.name for part in getattr(self, name)
                ]
        if self.env_kwargs:
            plain["env_kwargs"] = _plain(self.env_kwargs)
        for name in ("monitor_kwargs", "policy_kwargs"):
            if getattr(self, name):
                plain[name] = format_literal(getattr(self, name))
        return {**plain, **{name: _plain(value) for name, value in self.hyperparams.items()}}

    def check(self) -> None:
        """:raises ValueError: a hyperparameter that ``PPO_Plus`` does not have"""
        _check_keys(self.hyperparams)

    @property
    def deterministic_eval(self) -> bool:
        """Whether evaluation takes the most likely actions: as in rl_zoo3, not for Atari and MiniGrid."""
        spec = gym.registry.get(self.env_id)
        return not is_atari(self.env_id) and "minigrid" not in str(spec and spec.entry_point)


#: Keys of a settings file that are fields of their own; the others are arguments of ``PPO_Plus``.
SETTINGS = tuple(
    f.name
    for f in fields(Experiment)
    if f.name not in ("env_id", "hyperparams", "eval_env_kwargs", "seed", "device", "vec_env")
)
#: Those that name classes to import, and what each must be a subclass of. (By name: torch, which takes seconds to load,
#: is not needed to find a mistake.)
PARTS = {
    "env_wrapper": "gymnasium.Wrapper",
    "vec_env_wrapper": "stable_baselines3.common.vec_env.VecEnvWrapper",
    "callback": "stable_baselines3.common.callbacks.BaseCallback",
}


def load_experiment(
    env_id: str,
    path: str | Path | None = None,
    overrides: dict[str, Any] | None = None,
    *,
    variant: str | None = None,
    packages: Collection[str] | None = ALLOWED_PACKAGES,
    **run: Any,
) -> Experiment:
    """The experiment that a settings file describes for an environment, every name in it looked up and checked.

    :param env_id: Gymnasium environment id
    :param path: YAML file; ``None`` for the package's own
    :param overrides: settings that replace those of the file, as a whole each
    :param variant: take the entry ``env_id/variant`` of the file
    :param packages: what the file may import wrappers, callbacks and policies from; ``None``: from anywhere
    :param run: fields that a file does not set: ``seed``, ``device``, ``vec_env``, ``eval_env_kwargs``
    :return: the experiment
    :raises ValueError: broken YAML, no entry, unknown key or bad value; the message names the key, and file and entry
        where it is theirs
    :raises OSError: the file cannot be read
    """
    source = builtin_file() if path is None else Path(path)
    name, entry = read_entry(env_id, source, variant)
    # By themselves first: the file is not to blame for them.
    parse_settings(env_id, {"n_timesteps": 1, **(overrides or {})}, packages).check()
    settings = {**entry, **(overrides or {})}
    try:
        # First: what seems to be missing may be misspelled.
        _check_keys(settings)
        return parse_settings(env_id, settings, packages).replace(**run)
    except ValueError as error:
        raise ValueError(f"{source}, {name}: {error}") from None


def parse_settings(
    env_id: str, settings: dict[str, Any], packages: Collection[str] | None = ALLOWED_PACKAGES
) -> Experiment:
    """Read one entry of a settings file. Whether ``PPO_Plus`` has the hyperparameters is not asked here: the files of
    other algorithms are read as well.

    :param env_id: Gymnasium environment id
    :param settings: the entry
    :param packages: what wrappers, callbacks and policies may be imported from; ``None``: from anywhere
    :raises ValueError: bad value
    """
    rest = dict(settings)

    def take(name: str, default: Any = None) -> Any:
        return rest.pop(name, default)

    frame_stack = take("frame_stack")
    return Experiment(
        env_id=env_id,
        n_timesteps=positive_int("n_timesteps", take("n_timesteps")),
        n_envs=positive_int("n_envs", take("n_envs", 1)),
        policy=_policy(take("policy", "MlpPolicy"), packages),
        normalize=_normalize(take("normalize", False)),
        frame_stack=None if frame_stack is None else positive_int("frame_stack", frame_stack),
        env_kwargs=_mapping("env_kwargs", take("env_kwargs")),
        monitor_kwargs=_mapping("monitor_kwargs", take("monitor_kwargs")),
        policy_kwargs=_policy_kwargs(take("policy_kwargs")),
        env_wrapper=_parts("env_wrapper", take("env_wrapper"), packages),
        vec_env_wrapper=_parts("vec_env_wrapper", take("vec_env_wrapper"), packages),
        callback=_parts("callback", take("callback"), packages),
        hyperparams={
            name: _mapping(name, value) if str(name).endswith("_kwargs") else _hyperparameter(name, value)
            for name, value in rest.items()
        },
    )


def hyperparameter_names() -> set[str]:
    """What a file may set on ``PPO_Plus``: all but what the training run itself decides."""
    return ppo_plus_arguments() - {"policy", "policy_kwargs"}


def _check_keys(names: Iterable[Any]) -> None:
    """:raises ValueError: a key that no settings file has"""
    _check_names("", names, hyperparameter_names(), SETTINGS)


def _check_names(owner: str, names: Iterable[Any], valid: Iterable[str], also: Iterable[str] = ()) -> None:
    valid = sorted({*valid, *also})
    for name in names:
        if name not in valid:
            others = sb3_algorithms_with(name)
            if others and not owner:
                raise ValueError(f"{name!r} is an argument of {', '.join(others)}, which PPO_Plus does not have")
            nearest = get_close_matches(str(name), valid, n=1, cutoff=0.0)[0]
            raise ValueError(f"unknown key {name!r}{owner}; the nearest valid key is {nearest!r}")


def _policy(value: Any, packages: Collection[str] | None) -> str | type:
    if isinstance(value, str) and "." in value:
        return import_class(value, "stable_baselines3.common.policies.BasePolicy", packages)
    return value if isinstance(value, type) else str(value)


def _parts(name: str, value: Any, packages: Collection[str] | None) -> tuple[Part, ...]:
    """One class or a list of them, each a dotted name or a mapping from it to keyword arguments."""
    items = value if isinstance(value, list) else [] if value is None else [value]
    return tuple(_part(name, item, packages) for item in items)


def _part(name: str, item: Any, packages: Collection[str] | None) -> Part:
    if isinstance(item, str):
        item = {item: None}
    if not isinstance(item, dict) or len(item) != 1 or not isinstance(next(iter(item)), str):
        raise ValueError(f"{name}: {item!r} must be a dotted name, or a mapping of one such name to its arguments")
    ((dotted, kwargs),) = item.items()
    try:
        return Part(dotted, import_class(dotted, PARTS[name], packages), _mapping(dotted, kwargs))
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def _normalize(value: Any) -> dict[str, Any] | None:
    if isinstance(value, str):
        value = _literal("normalize", value)
    if value is None or isinstance(value, bool):
        return {} if value else None
    arguments = _mapping("normalize", value)
    _check_names(" in normalize", arguments, vec_normalize_arguments())
    return arguments


def _mapping(name: str, value: Any) -> dict[str, Any]:
    """A mapping given as one, as Python text, or not at all; ``nn.X`` in its values becomes the class."""
    if isinstance(value, str):
        value = _literal(name, value)
    mapping = require_mapping(name, {} if value is None else value)
    return {key: _literal(name, item) if _names_class(item) else item for key, item in mapping.items()}


def _policy_kwargs(value: Any) -> dict[str, Any]:
    arguments = _mapping("policy_kwargs", value)
    for name, item in arguments.items():
        if isinstance(item, str) and str(name).endswith(("_fn", "_class")):
            raise ValueError(f"policy_kwargs: {name}={item!r} must be a class, such as nn.ReLU or th.optim.Adam")
    return arguments


def _literal(name: str, text: str) -> Any:
    try:
        return parse_literal(text)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def _names_class(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch(r"(nn|(th|torch)\.(nn|optim))\.\w+", value) is not None


def _hyperparameter(name: Any, value: Any) -> Any:
    """A number, a word, or a value that is written as a call, such as ``ColoredNoise(beta=0.5)``."""
    is_call = isinstance(value, str) and value.partition("(")[0] in STRATEGIES
    return _literal(name, value) if is_call else _number(name, value)


def _number(name: Any, value: Any) -> Any:
    """YAML reads ``1e-3`` as text; a file that says so means the number.

    :raises ValueError: a number in quotes
    """
    if not isinstance(value, str):
        return value
    if re.fullmatch(r"[-+]?(\d+\.?\d*|\.\d+)", value):
        raise ValueError(f"{name}={value!r} is a string: write the number without quotes")
    try:
        return float(value)
    except ValueError:
        return value


def _plain(value: Any) -> Any:
    """Data that YAML can hold as it is; anything else that settings may say, as Python text."""
    return value if _is_plain(value) else format_literal(value)


def _is_plain(value: Any) -> bool:
    if isinstance(value, dict | list):
        return all(map(_is_plain, value.values() if isinstance(value, dict) else value))
    return value is None or isinstance(value, bool | int | float | str)


def _dotted_name(value: type) -> str:
    return f"{value.__module__}.{value.__qualname__}"


#: SB3's other algorithms.
SB3_ALGORITHMS = ("A2C", "DDPG", "DQN", "SAC", "TD3")
#: What no settings file sets: the training run decides it.
OF_THE_RUN = {"env", "seed", "device", "verbose", "tensorboard_log", "_init_setup_model"}


def ppo_plus_arguments() -> set[str]:
    """The arguments of ``PPO_Plus`` that a settings file may set."""
    return _arguments(_package("ppo_plus").joinpath(*MODULES["PPO_Plus"].split(".")[1:]).with_suffix(".py"), "PPO_Plus")


def sb3_algorithms_with(argument: str) -> list[str]:
    """Those of SB3's other algorithms that have an argument which a settings file may set."""
    package = _package("stable_baselines3")
    files = {name: package / name.lower() / f"{name.lower()}.py" for name in SB3_ALGORITHMS}
    return [name for name, path in files.items() if argument in _arguments(path, name)]


def vec_normalize_arguments() -> set[str]:
    """The arguments of ``VecNormalize``."""
    path = _package("stable_baselines3") / "common" / "vec_env" / "vec_normalize.py"
    return _arguments(path, "VecNormalize") - {"venv"}


def _package(name: str) -> Path:
    """The folder of a package, which is not imported."""
    spec = find_spec(name)
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent


def _arguments(path: Path, name: str) -> set[str]:
    """The arguments of the constructor of a class, but for :data:`OF_THE_RUN`."""
    classes = ast.parse(path.read_text(encoding="utf-8")).body
    body = next(node for node in classes if isinstance(node, ast.ClassDef) and node.name == name).body
    arguments = next(node for node in body if isinstance(node, ast.FunctionDef) and node.name == "__init__").args
    return {argument.arg for argument in (*arguments.args, *arguments.kwonlyargs)} - {"self"} - OF_THE_RUN


def share(experiment: Experiment, ranks: "Ranks") -> Experiment:
    """What one process has of an experiment: its part of the environments and of each minibatch.

    :param experiment: the whole
    :param ranks: the processes
    :raises ValueError: something cannot be divided
    """
    if not ranks.several:
        return experiment
    batch_size = experiment.hyperparams.get("batch_size", 64)
    for name, value in (("n_envs", experiment.n_envs), ("batch_size", batch_size)):
        if value % ranks.size:
            raise ValueError(
                f"{name}={value} cannot be divided among {ranks.size} processes: use a multiple of {ranks.size}, "
                f"such as {name}={-(-value // ranks.size) * ranks.size}, or fewer processes"
            )
    hyperparams = {**experiment.hyperparams, "batch_size": batch_size // ranks.size}
    return experiment.replace(n_envs=experiment.n_envs // ranks.size, hyperparams=hyperparams)
