"""Normalization statistics as a file that cannot run code, and those that SB3 pickled."""

import pickle
from pathlib import Path
from typing import Any

from stable_baselines3.common.vec_env import VecNormalize

from ppo_plus.saving.format import container
from ppo_plus.saving.format.container import naming
from ppo_plus.saving.format.names import Damaged
from ppo_plus.saving.sb3.pickles import Call, parse, value_of

KIND = "statistics"
#: The statistics, and how they were used: the names in a file, and the attributes of ``VecNormalize``.
STATISTICS = {
    "observation_space": "observation_space",
    "observation_moments": "obs_rms",
    "return_moments": "ret_rms",
    "training": "training",
    "normalize_observations": "norm_obs",
    "normalized_keys": "norm_obs_keys",
    "normalize_rewards": "norm_reward",
    "clip_observations": "clip_obs",
    "clip_rewards": "clip_reward",
    "gamma": "gamma",
    "epsilon": "epsilon",
}
_PICKLED = "stable_baselines3.common.vec_env.vec_normalize:VecNormalize"


def write_statistics(normalize: VecNormalize, path: Path) -> None:
    """Write the statistics of environments to a file, completely or not at all."""
    container.write(path, KIND, {name: getattr(normalize, each, None) for name, each in STATISTICS.items()})


def read_statistics(path: Path, trust_pickle: bool = False) -> dict[str, Any]:
    """The statistics in a file that :func:`write_statistics` or SB3 wrote, by the attributes of ``VecNormalize``.

    :param trust_pickle: unpickle SB3's, which runs code in it. Without it, the file is read without running anything
    :raises Refused: it is damaged or something else, or cannot be read without running it
    """
    if container.is_container(path):
        written = container.read(path, KIND)
        found = {STATISTICS.get(name, ""): each for name, each in written.items()} if isinstance(written, dict) else {}
    elif trust_pickle:
        with path.open("rb") as file:
            found = vars(pickle.load(file))
    else:
        data = path.read_bytes()
        with naming(path, "VecNormalize"):
            parsed = parse(data)
            if not isinstance(parsed, Call) or parsed.name != _PICKLED or type(parsed.state) is not dict:
                raise Damaged("it is the pickle of something else")
            present = [name for name in STATISTICS.values() if name in parsed.state]
            found = {name: value_of(parsed.state[name], len(data)) for name in present}
    if not {"obs_rms", "ret_rms"} <= found.keys() or "" in found:
        with naming(path, "VecNormalize"):
            raise Damaged("it has no statistics")
    return found
