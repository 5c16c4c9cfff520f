"""Dead workers without waiting for them, so that no test depends on how busy the machine is."""

from datetime import datetime

import sqlalchemy
from optuna.storages._rdb.models import TrialHeartbeatModel

LONG_AGO = datetime(2000, 1, 1)


def silence(storage, trial_id):
    """Make the last heartbeat of a trial one of long ago.

    :return: whether it had one
    """
    heartbeat = TrialHeartbeatModel
    update = sqlalchemy.update(heartbeat).where(heartbeat.trial_id == trial_id).values(heartbeat=LONG_AGO)
    with storage._backend.engine.begin() as connection:
        return connection.execute(update).rowcount == 1


def last_heartbeat(storage, trial_id):
    """Time of the last heartbeat of a trial."""
    heartbeat = TrialHeartbeatModel
    with storage._backend.engine.begin() as connection:
        return connection.scalar(sqlalchemy.select(heartbeat.heartbeat).where(heartbeat.trial_id == trial_id))
