"""The task of a study: its plan, with what is tuned and the search space, as plain data that a storage keeps."""

import json
import math
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from ppo_plus.zoo.experiment import ALLOWED_PACKAGES, Experiment, parse_settings
from ppo_plus.zoo.hyperparams import shortened
from ppo_plus.zoo.tune.plan import Plan, counted, rollout_size
from ppo_plus.zoo.tune.space import Choices, Space, parse_space, setting


@dataclass(frozen=True)
class TuningTask:
    """Everything that a worker must know about a study. It is stored in the study, as plain data.

    :param experiment: what is tuned
    :param space: contents of the search-space file
    :param packages: what settings may import from; ``None``: from anywhere
    :param gym_packages: packages imported because they register environments
    """

    experiment: Experiment
    space: dict[str, Any]
    plan: Plan
    packages: tuple[str, ...] | None = ALLOWED_PACKAGES
    gym_packages: tuple[str, ...] = ()

    @property
    def default(self) -> Experiment:
        """The experiment with the defaults of ``PPO_Plus(policy, env)``: one environment, nothing set."""
        return self.experiment.replace(n_envs=1, normalize=None, policy_kwargs={}, hyperparams={})

    def baselines(self) -> dict[str, Experiment]:
        """What is tried before the search, and what a winner must beat, by name: the default, and the experiment's own
        settings if they differ from it."""
        named = {"default": self.default, "settings file": self.experiment}
        return named if self.default != self.experiment else {"default": self.default}

    def search_space(self) -> Space:
        """The space, narrowed to rollouts that fit the budget, and widened to hold the baselines.

        :raises ValueError: no rollout fits
        """
        space = parse_space(self.space)
        if "n_envs" not in space.dimensions:
            try:
                space = space.choosing("n_steps", self._fits)
            except ValueError as error:
                raise ValueError(
                    f"search space: {error}: with n_envs={self.experiment.n_envs}, rollouts must divide the "
                    f"{self.plan.eval_freq:,} timesteps between evaluations; add other values, or change n_timesteps, "
                    "n_evals or n_envs (-n, --n-evaluations, --n-envs)"
                ) from None
        for experiment in self.baselines().values():
            space = space.including(experiment)
        return space

    def left_out(self) -> list[int]:
        """The choices of ``n_steps`` in the space that do not fit between evaluations."""
        space = parse_space(self.space)
        choices = space.dimensions.get("n_steps")
        if not isinstance(choices, Choices) or "n_envs" in space.dimensions:
            return []
        return [n for n in choices.examples() if not self._fits(n)]

    def _fits(self, n_steps: int) -> bool:
        return self.plan.eval_freq % (n_steps * self.experiment.n_envs) == 0

    def candidate(self, settings: dict[str, Any]) -> Experiment:
        """The experiment with sampled settings, adjusted where they do not fit each other."""
        experiment = self.experiment.with_hyperparams(settings, self.packages)
        return self.experiment.with_hyperparams({**settings, **self._adjusted(experiment)}, self.packages)

    def _adjusted(self, experiment: Experiment) -> dict[str, Any]:
        n_steps = largest_divisor(self.plan.eval_freq // experiment.n_envs, setting(experiment, "n_steps"))
        adjusted = {
            "n_steps": n_steps,
            "batch_size": min(setting(experiment, "batch_size"), n_steps * experiment.n_envs),
        }
        if not setting(experiment, "use_sde"):
            adjusted["sde_sample_freq"] = -1
        if setting(experiment, "target_kl") is None:
            adjusted["kl_control"] = "stop"
        return adjusted

    def read(self, settings: dict[str, Any]) -> Experiment:
        """The experiment that recorded settings describe."""
        run = {name: getattr(self.experiment, name) for name in RUN}
        return parse_settings(self.experiment.env_id, settings, self.packages).replace(**run)

    def to_json(self) -> dict[str, Any]:
        """The task as plain data, as a storage returns it.

        :raises TypeError: something in the settings is not plain data
        """
        data = {
            "env_id": self.experiment.env_id,
            "settings": self.experiment.settings(),
            "run": {name: getattr(self.experiment, name) for name in RUN},
            "space": self.space,
            "plan": asdict(self.plan),
            "packages": self.packages,
            "gym_packages": self.gym_packages,
        }
        return json.loads(json.dumps(data))  # type: ignore[no-any-return]

    @classmethod
    def from_json(cls, data: dict[str, Any], allowed: tuple[str, ...] | None = ALLOWED_PACKAGES) -> "TuningTask":
        """The task that :meth:`to_json` wrote.

        :param data: from a storage, which others can write to as well
        :param allowed: the packages that it may import from; ``None``: any
        :raises ValueError: it asks for others; nothing has been imported then; or a setting has a wrong value
        :raises KeyError: something is missing
        :raises TypeError: something has the wrong type, or too much
        """
        _check_kinds("task", data, KINDS)
        _check_kinds("run", data["run"], RUN)
        packages = None if data["packages"] is None else tuple(map(str, data["packages"]))
        _check_allowed(data["env_id"], packages, allowed)
        experiment = parse_settings(data["env_id"], data["settings"], packages).replace(**data["run"])
        plan = Plan(**data["plan"])
        if plan.n_evals > plan.n_timesteps:
            raise ValueError(f"n_evals={plan.n_evals} must be at most n_timesteps={plan.n_timesteps}")
        return cls(experiment, data["space"], plan, packages, tuple(map(str, data["gym_packages"])))


def _check_allowed(env_id: str, packages: tuple[str, ...] | None, allowed: tuple[str, ...] | None) -> None:
    if allowed is None:
        return
    if packages is None:
        raise ValueError(
            "the study imports from any package: use --trust-config if you trust everyone who can write to it"
        )
    # Gymnasium imports the module before the colon.
    module = env_id.rpartition(":")[0].split(".")[0]
    missing = sorted({*packages, module} - {*allowed, ""})
    if missing:
        raise ValueError(
            f"the study imports from {', '.join(missing)}: use --gym-packages {' '.join(missing)} if you trust them"
        )


#: Fields of an experiment that are not settings, and the same in all runs of a study; and of what kind they are.
RUN = {"device": str, "vec_env": str, "eval_env_kwargs": (dict, type(None))}

#: What a task is as plain data.
KINDS = {
    "env_id": str,
    "settings": dict,
    "run": dict,
    "space": dict,
    "plan": dict,
    "packages": (list, type(None)),
    "gym_packages": list,
}


def _check_kinds(what: str, data: Mapping[str, Any], kinds: Mapping[str, Any]) -> None:
    for name, kind in kinds.items():
        if not isinstance(data[name], kind):
            raise TypeError(f"{name} has the wrong type")
    unknown = sorted(set(data) - set(kinds))
    if unknown:
        # Others would replace what has been checked: an environment's id, say, which Gymnasium imports.
        raise TypeError(f"{what} has the unknown key {shortened(repr(unknown[0]))}")


def make_task(
    experiment: Experiment,
    space: dict[str, Any],
    plan: Plan,
    packages: tuple[str, ...] | None = ALLOWED_PACKAGES,
    gym_packages: tuple[str, ...] = (),
) -> TuningTask:
    """A task whose budget is a whole number of rollouts.

    :param experiment: what is tuned
    :param space: contents of a search-space file, see :func:`ppo_plus.zoo.tune.space.read_space`
    :param plan: the plan; its budget replaces the experiment's
    :param packages: see :class:`TuningTask`
    :param gym_packages: see :class:`TuningTask`
    :raises ValueError: something in the space does not fit, or whole rollouts need a much larger budget
    """
    task = TuningTask(experiment.replace(seed=0), space, plan, packages, gym_packages)
    task = replace(task, plan=plan.on_rollouts(*task.baselines().values()))
    _check_budget(plan.n_timesteps, task)
    task = replace(task, experiment=task.experiment.replace(n_timesteps=task.plan.n_timesteps))
    task.search_space()
    return task


def _check_budget(asked: int, task: TuningTask) -> None:
    """Raise an error if a budget has more than doubled: that is not what was meant."""
    if task.plan.n_timesteps > 2 * asked:
        raise ValueError(
            f"n_timesteps={asked} becomes {task.plan.n_timesteps}, because runs are whole {_rollouts(task)}: give "
            f"n_timesteps={math.ceil(task.plan.n_timesteps / 2)} or more, or another n_steps or n_envs (-params, "
            "--n-envs), so that one rollout divides the other"
        )


def tell_budget(asked: int, task: TuningTask) -> None:
    """Print how the budget has changed, if it has, and which rollouts do not fit it.

    :param asked: requested environment steps of each run
    """
    n_timesteps, n_evals = task.plan.n_timesteps, task.plan.n_evals
    if n_timesteps != asked:
        change = f"runs get {n_timesteps:,} timesteps instead of {asked:,}, and {counted(n_evals, 'evaluation')}"
        print(f"{change}: they are whole {_rollouts(task)}", file=sys.stderr)
    left_out = ", ".join(map(str, task.left_out()))
    if left_out:
        reason = f"n_steps times n_envs must divide the {task.plan.eval_freq:,} timesteps between evaluations"
        which = f"n_steps={left_out} of the search space will not be tried with n_envs={task.experiment.n_envs}"
        print(f"{which}: {reason}", file=sys.stderr)


def _rollouts(task: TuningTask) -> str:
    sizes = (f"{rollout_size(experiment):,} timesteps ({name})" for name, experiment in task.baselines().items())
    return f"rollouts of {' and '.join(sizes)}"


def largest_divisor(number: int, limit: int) -> int:
    """The largest divisor of a number up to a limit.

    :param number: at least 1
    :param limit: at least 1
    """
    return next((n for n in range(min(limit, number), 1, -1) if number % n == 0), 1)
