"""What modules below ``ppo.py`` read and set of a whole model: evaluating, demonstrations and files."""

from collections.abc import Sequence
from typing import Any

from ppo_plus.compiling.compiled import Compilation
from ppo_plus.distributed.ranks import Ranks
from ppo_plus.envs.make_vec import ModelEnvs
from ppo_plus.policy.policies import ActorCriticPolicy
from ppo_plus.policy.streams import Stream


class Model(ModelEnvs):
    """What a :class:`ppo_plus.PPO_Plus` has beside what SB3's algorithms have."""

    policy: ActorCriticPolicy  # type: ignore[assignment]
    compilation: Compilation
    ranks: Ranks
    action_mask_key: str | None
    streams: Sequence[Stream]
    #: The last observations, arrays or tensors; ``None``: the next rollout resets the environments.
    _last_obs: Any
