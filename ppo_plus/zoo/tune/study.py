"""A study: its stages, and their jobs.

The stages are a screening of many trials, and a confirmation of the best ones and the baselines on unseen seeds. Each
is an Optuna study with one job per trial. Jobs of the confirmation follow from the screening, the same for all workers.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import optuna
from optuna.storages import BaseStorage
from optuna.trial import FrozenTrial, TrialState

from ppo_plus.require import require_int
from ppo_plus.zoo.hyperparams import shortened
from ppo_plus.zoo.tune.jobs import CANDIDATE, JOB, SEED, Heartbeats, Jobs
from ppo_plus.zoo.tune.task import Plan, TuningTask

#: User attributes of a study.
TASK, BUDGET, ERROR = "ppo_plus", "max_total_trials", "error"
#: User attributes of a trial. ``BASELINE`` is the name of the baseline that it runs; other trials lack it.
BASELINE, RECORDED, SCORES = "baseline", "settings", "scores"


@dataclass(frozen=True)
class Study:
    """A study, by its name and its storage. All of its workers need the same grace period of heartbeats."""

    name: str
    storage: BaseStorage
    heartbeats: Heartbeats = field(default_factory=Heartbeats)

    def attributes(self) -> dict[str, Any]:
        """The user attributes of the study; ``KeyError`` if there is no such study."""
        return self.screening().study().user_attrs

    @property
    def budget(self) -> int:
        """The number of trials in the search."""
        return self.attributes().get(BUDGET, 0)  # type: ignore[no-any-return]

    def set(self, key: str, value: int | str | dict[str, Any] | None) -> None:
        """Set a user attribute."""
        self.screening().study().set_user_attr(key, value)

    def screening(self, budget: int | None = None) -> Jobs:
        """The first trials of the search, all by default. The study has more if its budget has grown meanwhile."""
        return Jobs(self.storage, self.name, self.heartbeats, budget)

    def confirmation(self) -> Jobs:
        """The runs of the confirmation; a larger budget adds those of its best trials."""
        return Jobs(self.storage, f"{self.name}, confirmation", self.heartbeats)

    def begun_stages(self) -> dict[str, Jobs]:
        """The stages that have begun, by name."""
        confirmation = self.confirmation()
        has_begun = confirmation.name in optuna.get_all_study_names(self.storage)
        return {"screening": self.screening()} | ({"confirmation": confirmation} if has_begun else {})


def create(study: Study, task: TuningTask, max_total_trials: int) -> None:
    """Create a study, or resume it with the same or a larger budget.

    :raises ValueError: a study of that name has another task
    """
    require_int("max_total_trials", max_total_trials, 1)
    optuna.create_study(study_name=study.name, storage=study.storage, direction="maximize", load_if_exists=True)
    data = task.to_json()
    given, kept = by_name(data), by_name(study.attributes().get(TASK, data))
    pairs = {name: (given.get(name, "nothing"), kept.get(name, "nothing")) for name in kept | given}
    if differences := [f"{name}={new} (the study has {old})" for name, (new, old) in pairs.items() if new != old]:
        problem = f"the study {study.name!r} exists with other values: {shortened(', '.join(differences))}"
        raise ValueError(f"{problem}: give the same ones to resume it, or choose another name with --study-name")
    study.set(BUDGET, max(max_total_trials, study.budget))
    study.set(ERROR, None)
    study.set(TASK, data)


def by_name(data: dict[str, Any]) -> dict[str, Any]:
    """The values of a task's data, those of mappings one by one: ``plan seed``."""
    parts = {key: value if isinstance(value, dict) else {"": value} for key, value in data.items()}
    return {f"{key} {name}".strip(): value for key, part in parts.items() for name, value in part.items()}


def prepare_screening(study: Study, task: TuningTask, budget: int) -> Jobs:
    """The jobs of the first stage: the baselines, then what the sampler chooses; ``budget`` trials."""
    baselines, space = task.baselines(), task.search_space()
    jobs: list[dict[str, Any]] = [{BASELINE: name} for name in baselines] + [{} for _ in range(budget)]
    study.screening().fill(jobs[:budget], [space.params(experiment) for experiment in baselines.values()])
    return study.screening(budget)


def prepare_confirmation(study: Study, plan: Plan, budget: int) -> Jobs:
    """The jobs of the last stage: the baselines and the best trials, the finalists, on unseen seeds. All workers get
    here at about the same time; a run that two of them add counts once."""
    screening = study.screening(budget).trials()
    ranked = ranked_candidates(screening)
    # The sampler may choose the same settings again.
    settings = [trial.user_attrs[RECORDED] for trial in ranked]
    best = [trial for i, trial in enumerate(ranked) if settings[i] not in settings[:i]][: plan.n_finalists]
    # A baseline whose workers died before it began has no settings.
    baselines = [trial for trial in screening if {BASELINE, RECORDED} <= trial.user_attrs.keys()]
    chosen = [*baselines, *best] if best else []
    jobs = study.confirmation()
    optuna.create_study(study_name=jobs.name, storage=jobs.storage, direction="maximize", load_if_exists=True)
    runs = [(trial.user_attrs, seed) for seed in plan.seeds("confirmation") for trial in chosen]
    jobs.fill([{CANDIDATE: tried[JOB], SEED: seed, RECORDED: tried[RECORDED]} for tried, seed in runs])
    return jobs


def stages(study: Study, task: TuningTask) -> Iterator[Jobs]:
    """The jobs of each stage, prepared when its turn comes."""
    # Read once: if it grew between two stages, the later one would follow from trials that are not done.
    budget = study.budget
    yield prepare_screening(study, task, budget)
    yield prepare_confirmation(study, task.plan, budget)


def is_over(study: Study, task: TuningTask) -> bool:
    """Whether a study is finished."""
    return "confirmation" in study.begun_stages() and all(jobs.all_done() for jobs in stages(study, task))


def ranking(trials: Sequence[FrozenTrial]) -> list[FrozenTrial]:
    """The trials that have a score, best first. (The value of a pruned one in Optuna is its last report.)"""
    done = [trial for trial in trials if trial.state == TrialState.COMPLETE]
    return sorted(done, key=lambda trial: (-trial.values[0], trial.user_attrs[JOB]))


def ranked_candidates(trials: Sequence[FrozenTrial]) -> list[FrozenTrial]:
    """The :func:`ranking` without the baselines."""
    return [trial for trial in ranking(trials) if BASELINE not in trial.user_attrs]
