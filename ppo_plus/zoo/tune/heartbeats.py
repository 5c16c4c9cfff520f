"""Signs of life of workers, by which others find out who is dead."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

from optuna.exceptions import UpdateFinishedTrialError
from optuna.storages import BaseStorage
from optuna.trial import FrozenTrial

from ppo_plus.zoo.tune.attributes import HEARTBEAT
from ppo_plus.zoo.tune.storage import STORAGE_ERRORS


class Heartbeats:
    """Heartbeats are a number in an attribute of a running trial that its worker keeps changing. A worker counts as
    dead when the number has not changed for the grace period, on the clock of the process that looks.

    (Optuna's own heartbeats end with the first write that fails, and are dates: a clock that jumps ahead would end
    living workers' trials.)

    :param grace_period: seconds without a new heartbeat after which a worker counts as dead; there are four of them
        in that time
    """

    def __init__(self, grace_period: float = 60):
        self.interval, self.grace_period, self.clock = grace_period / 4, grace_period, time.monotonic
        #: By trial: its heartbeat, and since when it is the same.
        self._seen: dict[int, tuple[Any, float]] = {}

    def is_silent(self, trial: FrozenTrial) -> bool:
        """Whether the worker of a running trial, as it was just read, counts as dead."""
        heartbeat, now = trial.user_attrs.get(HEARTBEAT), self.clock()
        last, since = self._seen.setdefault(trial._trial_id, (heartbeat, now))
        if heartbeat != last:
            self._seen[trial._trial_id] = (heartbeat, now)
            return False
        return now - since >= self.grace_period

    @contextmanager
    def of(self, storage: BaseStorage, trial_id: int) -> Iterator[None]:
        """Record heartbeats of a trial, from another thread, while the block runs."""
        done = threading.Event()
        thread = threading.Thread(target=self._beat, args=(storage, trial_id, done), daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def _beat(self, storage: BaseStorage, trial_id: int, done: threading.Event) -> None:
        for number in count(1):
            if done.wait(self.interval):
                break
            try:
                storage.set_trial_user_attr(trial_id, HEARTBEAT, number)
            except UpdateFinishedTrialError:
                break  # it counted as dead; whatever it reports next finds out
            except (*STORAGE_ERRORS, KeyboardInterrupt):
                continue  # until the grace period is over, nothing is lost; an interrupt is for the main thread
        storage.remove_session()
