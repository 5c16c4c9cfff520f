"""The plan of a study (budgets, evaluations, seeds, stages), and its task: the plan with what is tuned."""

import json
import math
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from ppo_plus.zoo.experiment import ALLOWED_PACKAGES, Experiment, parse_settings
from ppo_plus.zoo.hyperparams import MAX_NUMBER, shortened
from ppo_plus.zoo.tune.space import Choices, Space, parse_space, setting

#: Between the seeds of two runs. The k-th environment of a run has the run's seed plus k, so with a smaller stride runs
#: would share episodes and not be independent.
SEED_STRIDE = 1_000

#: From the study's seed to the first one of the confirmation.
CONFIRMATION_SEED = 1_000_000


@dataclass(frozen=True)
class Plan:
    """The budget of a study.

    :param n_timesteps: environment steps of each run
    :param n_evals: approximate number of evaluations of a run: the interval between two is a whole number of rollouts
    :param n_eval_episodes: episodes of an evaluation
    :param n_eval_envs: parallel environments of an evaluation
    :param last_evals: the score of a run is the mean of its last evaluations, this many
    :param n_seeds: seeds of a trial
    :param race_share: share of the finished trials that get more seeds
    :param race_seeds: how many more
    :param n_finalists: how many trials are compared with the baselines in the end
    :param confirm_seeds: on how many seeds that the search has not seen: at least 10, since fewer are not conclusive,
        or 0, and then nothing is exported
    :param sampler: name of a sampler, see :mod:`ppo_plus.zoo.tune.search`
    :param pruner: name of a pruner
    :param seed: first training seed, which also seeds the samplers; the others follow in steps of :data:`SEED_STRIDE`
    """

    n_timesteps: int
    n_evals: int = 10
    n_eval_episodes: int = 10
    n_eval_envs: int = 1
    last_evals: int = 3
    n_seeds: int = 1
    race_share: float = 0.2
    race_seeds: int = 2
    n_finalists: int = 3
    confirm_seeds: int = 10
    sampler: str = "tpe"
    pruner: str = "median"
    seed: int = 0

    def __post_init__(self) -> None:
        for name, (lowest, highest) in LIMITS.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int):
                raise ValueError(f"{name}={shortened(repr(value))} must be a whole number")
            if value < lowest:
                raise ValueError(f"{name}={value} must be at least {lowest}")
            if value > highest:
                raise ValueError(f"{name}={shortened(repr(value))} must be at most {highest}")
        if isinstance(self.race_share, bool) or not isinstance(self.race_share, (int, float)):
            raise ValueError(f"race_share={shortened(repr(self.race_share))} must be a number")
        if 0 < self.confirm_seeds < 10:
            raise ValueError(
                f"confirm_seeds={self.confirm_seeds} is too few to be conclusive: use at least 10, or 0 for none"
            )
        if not 0 <= self.race_share <= 1:
            raise ValueError(f"race_share={self.race_share} must be between 0 and 1")
        if self.n_seeds + self.race_seeds > CONFIRMATION_SEED // SEED_STRIDE:
            raise ValueError(f"n_seeds={self.n_seeds} and race_seeds={self.race_seeds} must be at most 1000 together")
        if self.confirmation_seeds.stop > 2**32:
            raise ValueError(f"seed={self.seed} leaves no seeds below 2**32 for the confirmation: use a smaller one")
        if self.last_evals > self.n_evals:
            raise ValueError(
                f"last_evals={self.last_evals} (--last-evals) must be at most n_evals={self.n_evals} (--n-evaluations)"
            )

    @property
    def eval_freq(self) -> int:
        """Environment steps between two evaluations."""
        return self.n_timesteps // self.n_evals

    @property
    def screening_seeds(self) -> range:
        """The training seeds of every trial."""
        return range(self.seed, self.seed + SEED_STRIDE * self.n_seeds, SEED_STRIDE)

    @property
    def racing_seeds(self) -> range:
        """The further training seeds of the trials that race."""
        first = self.seed + SEED_STRIDE * self.n_seeds
        return range(first, first + SEED_STRIDE * self.race_seeds, SEED_STRIDE)

    @property
    def confirmation_seeds(self) -> range:
        """The training seeds of the confirmation. They start far from the others, which may become more."""
        first = self.seed + CONFIRMATION_SEED
        return range(first, first + SEED_STRIDE * self.confirm_seeds, SEED_STRIDE)

    def n_racing(self, n_trials: int) -> int:
        """How many trials race.

        :param n_trials: how many trials have a score, without the baselines
        """
        n_racing = max(self.n_finalists, math.ceil(self.race_share * n_trials)) if self.race_seeds else 0
        return min(n_racing, n_trials)

    def describe(self, max_total_trials: int, n_baselines: int = 1) -> str:
        """What a study does at most, in a line.

        :param max_total_trials: the budget of the screening, baselines included
        :param n_baselines: how many of these trials are baselines
        """
        n_searched = max(max_total_trials - n_baselines, 0)
        n_race = self.n_racing(n_searched) * self.race_seeds
        n_compared = min(self.n_finalists, n_searched) + n_baselines
        n_confirmation = n_compared * self.confirm_seeds if n_searched else 0
        seeds = f" on each of {self.n_seeds} seeds" if self.n_seeds > 1 else ""
        stages = (("race", n_race), ("confirmation", n_confirmation))
        later = " and ".join(f"{counted(n, 'run')} of the {stage}" for stage, n in stages if n)
        then = f"then up to {later}" if later else "no race and no confirmation"
        return f"{counted(max_total_trials, 'trial')} of {self.n_timesteps:,} timesteps{seeds}, {then}"

    def on_rollouts(self, *experiments: Experiment) -> "Plan":
        """The plan with a budget, and intervals between evaluations, that are whole rollouts of the experiments. The
        budget can only grow; the number of evaluations may change.

        :param experiments: what must run with its own rollouts
        """
        rollout = math.lcm(*(rollout_size(experiment) for experiment in experiments))
        interval = math.ceil(self.n_timesteps / self.n_evals / rollout) * rollout
        n_evals = math.ceil(self.n_timesteps / interval)
        return replace(self, n_timesteps=n_evals * interval, n_evals=n_evals, last_evals=min(self.last_evals, n_evals))


#: The least and the most that each number of a plan may be. The most is what a study could never need: a plan is read
#: from a database, and its numbers decide how much memory is taken.
LIMITS = {
    "n_timesteps": (1, MAX_NUMBER),
    "n_evals": (1, MAX_NUMBER),
    "n_eval_episodes": (1, 10**6),
    "n_eval_envs": (1, 10**4),
    "last_evals": (1, MAX_NUMBER),
    "n_seeds": (1, 1_000),
    "race_seeds": (0, 1_000),
    "n_finalists": (1, 1_000),
    "confirm_seeds": (0, 1_000),
    "seed": (0, 2**32),
}


@dataclass(frozen=True)
class Task:
    """Everything that a worker must know about a study. It is stored in the study, as plain data.

    :param experiment: what is tuned
    :param space: contents of the search-space file
    :param plan: the plan
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
    def from_json(cls, data: dict[str, Any], allowed: tuple[str, ...] | None = ALLOWED_PACKAGES) -> "Task":
        """The task that :meth:`to_json` wrote.

        :param data: from a storage, which others can write to as well
        :param allowed: the packages that it may import from; ``None``: any
        :raises ValueError: it asks for others; nothing has been imported then; or a setting has a wrong value
        :raises KeyError: something is missing
        :raises TypeError: something is of a wrong kind, or too much
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
            raise TypeError(f"{name} is of a wrong kind")
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
) -> Task:
    """A task whose budget is a whole number of rollouts.

    :param experiment: what is tuned
    :param space: contents of a search-space file, see :func:`ppo_plus.zoo.tune.space.read_space`
    :param plan: the plan; its budget replaces the experiment's
    :param packages: see :class:`Task`
    :param gym_packages: see :class:`Task`
    :raises ValueError: something in the space does not fit, or whole rollouts need a much larger budget
    """
    task = Task(experiment.replace(seed=0), space, plan, packages, gym_packages)
    task = replace(task, plan=plan.on_rollouts(*task.baselines().values()))
    _check_budget(plan.n_timesteps, task)
    task = replace(task, experiment=task.experiment.replace(n_timesteps=task.plan.n_timesteps))
    task.search_space()
    return task


def _check_budget(asked: int, task: Task) -> None:
    """Refuse a budget that has more than doubled: that is not what was meant."""
    if task.plan.n_timesteps > 2 * asked:
        raise ValueError(
            f"n_timesteps={asked} becomes {task.plan.n_timesteps}, because runs are whole {_rollouts(task)}: give "
            f"n_timesteps={math.ceil(task.plan.n_timesteps / 2)} or more, or another n_steps or n_envs (-params, "
            "--n-envs), so that one rollout divides the other"
        )


def tell_budget(asked: int, task: Task) -> None:
    """Print how the budget has changed, if it has, and which rollouts do not fit it.

    :param asked: requested environment steps of each run
    :param task: the task
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


def _rollouts(task: Task) -> str:
    sizes = (f"{rollout_size(experiment):,} timesteps ({name})" for name, experiment in task.baselines().items())
    return f"rollouts of {' and '.join(sizes)}"


def rollout_size(experiment: Experiment) -> int:
    """Transitions of a rollout."""
    return int(setting(experiment, "n_steps")) * experiment.n_envs


def counted(number: int, noun: str) -> str:
    """A number with its noun: ``1 trial``, ``2 trials``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def largest_divisor(number: int, limit: int) -> int:
    """The largest divisor of a number up to a limit.

    :param number: at least 1
    :param limit: at least 1
    """
    return next((n for n in range(min(limit, number), 1, -1) if number % n == 0), 1)
