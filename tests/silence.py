"""Dead workers without waiting for them, so that no test depends on how busy the machine is."""

import sqlalchemy
from optuna.storages._rdb.models import TrialHeartbeatModel


def pass_by(storage, seconds):
    """Let time pass for whoever watches heartbeats through a storage.

    :param storage: the storage
    :param seconds: how long, from now on
    """
    start = storage._backend.clock()
    storage._backend.clock = lambda: start + seconds


def date_heartbeat(storage, trial_id, date):
    """Make the last heartbeat of a trial one of another time, as a machine whose clock is wrong would.

    :return: whether it had one
    """
    heartbeat = TrialHeartbeatModel
    update = sqlalchemy.update(heartbeat).where(heartbeat.trial_id == trial_id).values(heartbeat=date)
    with storage._backend.engine.begin() as connection:
        return connection.execute(update).rowcount == 1


def last_heartbeat(storage, trial_id):
    """Time of the last heartbeat of a trial."""
    heartbeat = TrialHeartbeatModel
    with storage._backend.engine.begin() as connection:
        return connection.scalar(sqlalchemy.select(heartbeat.heartbeat).where(heartbeat.trial_id == trial_id))
