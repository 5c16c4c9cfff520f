"""What SB3 and earlier versions kept under names that the present version does not have."""

from typing import Any


def adopt(model: Any) -> None:
    """Put what SB3, and version 0.1, keep in the model itself where it belongs now.

    :param model: a :class:`~ppo_plus.PPO_Plus` whose attributes have just been loaded
    """
    loaded = vars(model)
    collector = model.collector
    for old, new in (("_last_obs", "obs"), ("_last_episode_starts", "starts"), ("_carry", "carry")):
        if old in loaded:
            setattr(collector, new, loaded.pop(old))
    if "_kl_memory" in loaded:
        model.learner.kl_memory = loaded.pop("_kl_memory")
    for old in ("_n_skipped", "_lr_scale", "_compiling", "_functions", "_next_obs"):
        loaded.pop(old, None)
