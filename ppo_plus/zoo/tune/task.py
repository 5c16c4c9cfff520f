"""The task of a study: its plan, with what is tuned and the search space, as plain data that a storage keeps."""

import json
import math
import sys
from collections.abc import Collection
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from typing import Any

from ppo_plus.zoo.experiment import ALLOWED_PACKAGES, Experiment, make_envs, make_model, parse_settings
from ppo_plus.zoo.tune.plan import Plan, counted, rollout_size
from ppo_plus.zoo.tune.space import Choices, Space, parse_space, setting

#: Fields of an experiment that are not settings, and the same in all runs of a study.
RUN = ("device", "vec_env", "eval_env_kwargs")

#: Settings that others have an effect with only.
CONDITIONS: dict[str, dict[str, Any]] = {"sde_sample_freq": {"use_sde": True}, "kl_control": {"target_kl": 0.01}}


@dataclass(frozen=True)
class TuningTask:
    """Everything that a worker must know about a study."""

    experiment: Experiment  # what is tuned
    space: dict[str, Any]  # contents of the search-space file
    plan: Plan
    packages: tuple[str, ...] | None = ALLOWED_PACKAGES  # what settings may import from; `None`: from anywhere
    gym_packages: tuple[str, ...] = ()  # packages imported because they register environments

    def baselines(self) -> dict[str, Experiment]:
        """What is tried before the search, and what a winner must beat, by name: the defaults of
        ``PPO_Plus(policy, env)``, and the experiment's own settings if they differ from them."""
        default = self.experiment.replace(n_envs=1, normalize=None, policy_kwargs={}, hyperparams={})
        return {"default": default} | ({"settings file": self.experiment} if default != self.experiment else {})

    def fitted(self) -> "TuningTask":
        """The task with a budget of whole rollouts, which is an error if it is more than twice as large."""
        task, asked = replace(self, experiment=self.experiment.replace(seed=0)), self.plan.n_timesteps
        baselines = task.baselines()
        plan = self.plan.on_rollouts(*baselines.values())
        sizes = (f"{rollout_size(baseline):,} timesteps ({name})" for name, baseline in baselines.items())
        rollouts = f"whole rollouts of {' and '.join(sizes)}"
        if plan.n_timesteps > 2 * asked:
            raise ValueError(
                f"n_timesteps={asked} becomes {plan.n_timesteps}, because runs are {rollouts}: use "
                f"n_timesteps={math.ceil(plan.n_timesteps / 2)} or more, or another n_steps or n_envs (-params, "
                "--n-envs), so that one rollout divides the other"
            )
        task = replace(task, plan=plan, experiment=task.experiment.replace(n_timesteps=plan.n_timesteps))
        task.search_space()
        if plan.n_timesteps != asked:
            change = f"{plan.n_timesteps:,} timesteps instead of {asked:,}, and {counted(plan.n_evals, 'evaluation')}"
            print(f"each run has {change}: runs are {rollouts}", file=sys.stderr)
        return task

    def checked(self) -> "TuningTask":
        """The fitted task, after building its baselines, and a model with each value of the search space. What cannot
        be built is an error. Nothing is trained or stored."""
        task = self.fitted()
        for baseline in task.baselines().values():
            _build(baseline)
        given = task.experiment.replace(vec_env="dummy")
        with closing(make_envs(given)) as envs:
            for name, value, settings in task.search_space().examples():
                try:
                    candidate = task.candidate({**CONDITIONS.get(name, {}), **settings}).replace(vec_env="dummy")
                    if candidate.replace(policy_kwargs=given.policy_kwargs, hyperparams=given.hyperparams) == given:
                        make_model(candidate, envs)
                    else:
                        _build(candidate)
                except (ValueError, TypeError, RuntimeError, AssertionError) as error:
                    raise ValueError(f"search space: {name}: {value!r} cannot be used: {error}") from error
        return task

    def search_space(self) -> Space:
        """The space, narrowed to rollouts that fit the budget, and widened to include the baselines."""
        space, n_envs, interval = parse_space(self.space), self.experiment.n_envs, self.plan.eval_freq
        choices = space.dimensions.get("n_steps")
        if isinstance(choices, Choices) and "n_envs" not in space.dimensions:
            fitting = {name: n_steps for name, n_steps in choices.values.items() if interval % (n_steps * n_envs) == 0}
            if not fitting:
                raise ValueError(
                    f"search space: n_steps: none of {choices.examples()} fits: with n_envs={n_envs}, rollouts must "
                    f"divide the {interval:,} timesteps between evaluations; add other values, or change n_timesteps, "
                    "n_evals or n_envs (-n, --n-evaluations, --n-envs)"
                )
            space = Space({**space.dimensions, "n_steps": Choices(fitting)})
        for experiment in self.baselines().values():
            space = space.including(experiment)
        return space

    def candidate(self, settings: dict[str, Any]) -> Experiment:
        """The experiment with sampled settings, adjusted where they do not fit each other."""
        sampled = self.experiment.with_hyperparams(settings, self.packages)
        n_steps = largest_divisor(self.plan.eval_freq // sampled.n_envs, setting(sampled, "n_steps"))
        batch_size = min(setting(sampled, "batch_size"), n_steps * sampled.n_envs)
        adjusted = {"n_steps": n_steps, "batch_size": batch_size}
        if not setting(sampled, "use_sde"):
            adjusted["sde_sample_freq"] = -1
        if setting(sampled, "target_kl") is None:
            adjusted["kl_control"] = "stop"
        return self.experiment.with_hyperparams({**settings, **adjusted}, self.packages)

    def read(self, settings: dict[str, Any]) -> Experiment:
        """The experiment that recorded settings describe."""
        run = {name: getattr(self.experiment, name) for name in RUN}
        return parse_settings(self.experiment.env_id, settings, self.packages).replace(**run)

    def to_json(self) -> dict[str, Any]:
        """The task as plain data, as a storage returns it."""
        data = {
            "env_id": self.experiment.env_id,
            "settings": self.experiment.settings(),
            "run": {name: getattr(self.experiment, name) for name in RUN},
            "space": self.space,
            # Studies of earlier versions have no time.
            "plan": {name: value for name, value in asdict(self.plan).items() if value is not None},
            "packages": self.packages,
            "gym_packages": self.gym_packages,
        }
        return json.loads(json.dumps(data))  # type: ignore[no-any-return]

    @classmethod
    def from_json(cls, data: dict[str, Any], allowed: Collection[str] | None = ALLOWED_PACKAGES) -> "TuningTask":
        """The task that :meth:`to_json` wrote to a storage, which others can write to as well. If it imports from other
        packages than the allowed ones (``None``: any), that is an error before anything is imported."""
        packages = None if data["packages"] is None else tuple(map(str, data["packages"]))
        if allowed is not None:
            if packages is None:
                raise ValueError(
                    "the study imports from any package: use --trust-config if you trust everyone who can write to it"
                )
            # Gymnasium imports the module before the colon.
            module = data["env_id"].rpartition(":")[0].split(".")[0]
            missing = sorted({*packages, module} - {*allowed, ""})
            if missing:
                names = ", ".join(missing)
                raise ValueError(
                    f"the study imports from {names}: use --gym-packages {' '.join(missing)} if you trust them"
                )
        # Of the run only what is known: an environment's id, say, would replace the one that has been checked.
        run = {name: data["run"][name] for name in RUN}
        experiment = parse_settings(data["env_id"], data["settings"], packages).replace(**run)
        return cls(experiment, data["space"], Plan(**data["plan"]), packages, tuple(map(str, data["gym_packages"])))


def _build(experiment: Experiment) -> None:
    with closing(make_envs(experiment)) as envs:
        make_model(experiment, envs)


def largest_divisor(number: int, limit: int) -> int:
    """The largest divisor of a number up to a limit, both at least 1."""
    return next((n for n in range(min(limit, number), 1, -1) if number % n == 0), 1)
