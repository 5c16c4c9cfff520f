"""Environments and wrappers that are known, by the names of their classes: which of them can be replayed, and what of
theirs changes while they run.

A subclass may keep more than what it is made of, and is not among them.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ppo_plus.envs.resumable.plain_values import Clocks


@dataclass(frozen=True)
class Kept:
    """The attributes that change while a wrapper runs, all of them.

    :param lasting: those that outlast an episode, and change what comes out
    :param record: those that outlast an episode, and are only looked at
    :param episode: those that each reset sets anew
    :param clocks: those that are points in time, and the clock they were read from
    """

    lasting: tuple[str, ...] = ()
    record: tuple[str, ...] = ()
    episode: tuple[str, ...] = ()
    clocks: Mapping[str, Callable[[], float]] = field(default_factory=dict)

    def names(self, episode: bool = True) -> Clocks:
        """The names of all, and for points in time their clock.

        :param episode: whether those are among them that each reset sets anew
        """
        names = (*self.lasting, *self.record, *(self.episode if episode else ()))
        return {**dict.fromkeys(names), **self.clocks}


def listed_as(owner: Any) -> str:
    """The name of an object's class, as the tables have it."""
    return f"{type(owner).__module__}.{type(owner).__qualname__}"


_GYM, _SB3, _CONTRIB = "gymnasium.wrappers.", "stable_baselines3.common.", "sb3_contrib.common.wrappers."
_NORMALIZED = ("_update_running_mean",)

#: Wrappers of single environments.
WRAPPERS: dict[str, Kept] = {
    **{
        f"{_GYM}{name}": Kept()
        for name in (
            "common.OrderEnforcing",
            "common.PassiveEnvChecker",
            "stateful_action.RepeatAction",
            "transform_action.ClipAction",
            "transform_action.DiscretizeAction",
            "transform_action.RescaleAction",
            "transform_action.TransformAction",
            "transform_observation.AddRenderObservation",
            "transform_observation.DiscretizeObservation",
            "transform_observation.DtypeObservation",
            "transform_observation.FilterObservation",
            "transform_observation.FlattenObservation",
            "transform_observation.GrayscaleObservation",
            "transform_observation.RescaleObservation",
            "transform_observation.ReshapeObservation",
            "transform_observation.ResizeObservation",
            "transform_observation.TransformObservation",
            "transform_reward.ClipReward",
            "transform_reward.TransformReward",
        )
    },
    f"{_GYM}common.TimeLimit": Kept(episode=("_elapsed_steps",)),
    f"{_GYM}common.RecordEpisodeStatistics": Kept(
        record=("episode_count", "time_queue", "return_queue", "length_queue"),
        episode=("episode_returns", "episode_lengths"),
        clocks={"episode_start_time": time.perf_counter},
    ),
    f"{_GYM}stateful_action.StickyAction": Kept(
        episode=("last_action", "is_sticky_actions", "num_repeats", "repeats_taken")
    ),
    f"{_GYM}stateful_observation.DelayObservation": Kept(episode=("observation_queue",)),
    f"{_GYM}stateful_observation.FrameStackObservation": Kept(episode=("obs_queue", "padding_value")),
    # An episode that ends within the first skipped frames shows frames of the one before.
    f"{_GYM}stateful_observation.MaxAndSkipObservation": Kept(lasting=("_obs_buffer",)),
    f"{_GYM}stateful_observation.NormalizeObservation": Kept(lasting=("obs_rms", *_NORMALIZED)),
    f"{_GYM}stateful_observation.TimeAwareObservation": Kept(episode=("timesteps",)),
    f"{_GYM}stateful_reward.NormalizeReward": Kept(lasting=("return_rms", "discounted_reward", *_NORMALIZED)),
    f"{_SB3}atari_wrappers.ClipRewardEnv": Kept(),
    f"{_SB3}atari_wrappers.MaxAndSkipEnv": Kept(lasting=("_obs_buffer",)),
    f"{_SB3}atari_wrappers.StickyActionEnv": Kept(episode=("_sticky_action",)),
    f"{_SB3}atari_wrappers.WarpFrame": Kept(),
    f"{_SB3}monitor.Monitor": Kept(
        record=("episode_returns", "episode_lengths", "episode_times", "total_steps"),
        episode=("rewards", "needs_reset", "current_reset_info"),
        clocks={"t_start": time.time},
    ),
    "ppo_plus.envs.resumable.wrapper.Resumable": Kept(),
    f"{_CONTRIB}action_masker.ActionMasker": Kept(),
    f"{_CONTRIB}time_feature.TimeFeatureWrapper": Kept(episode=("_current_step",)),
}

#: Likewise, of vectorized environments.
VEC_WRAPPERS: dict[str, Kept] = {
    f"{_SB3}vec_env.{name}": kept
    for name, kept in {
        "vec_check_nan.VecCheckNan": Kept(record=("_user_warned",)),
        "vec_extract_dict_obs.VecExtractDictObs": Kept(),
        "vec_frame_stack.VecFrameStack": Kept(lasting=("stacked_obs",)),
        "vec_monitor.VecMonitor": Kept(
            record=("episode_count", "episode_returns", "episode_lengths"), clocks={"t_start": time.time}
        ),
        "vec_normalize.VecNormalize": Kept(
            lasting=("obs_rms", "ret_rms", "returns", "old_obs", "old_reward", "training", "norm_reward")
        ),
        "vec_transpose.VecTransposeImage": Kept(),
        # A film that is being taken when training stops is lost.
        "vec_video_recorder.VecVideoRecorder": Kept(record=("step_id",)),
    }.items()
}

VEC_WRAPPERS["ppo_plus.envs.normalization.VecNormalizeTransitions"] = VEC_WRAPPERS[
    f"{_SB3}vec_env.vec_normalize.VecNormalize"
]

#: Packages of environments whose episodes depend on nothing but generator, arguments of the reset and actions, ...
REPLAYABLE = tuple(f"gymnasium.envs.{name}." for name in ("classic_control", "toy_text", "box2d", "mujoco"))
_BOX2D = "gymnasium.envs.box2d."
#: ... but for these attributes, which outlast an episode (colors: ``reset(options={"randomize": False})``), ...
LASTING = {f"{_BOX2D}car_racing.CarRacing": ("road_color", "bg_color", "grass_color")}
#: ... and for these worlds: what was in them before decides in which order Box2D sums up forces. They get a new one at
#: each reset, as ``LunarLander`` gives itself.
WORLDS = (f"{_BOX2D}bipedal_walker.BipedalWalker", f"{_BOX2D}car_racing.CarRacing")
#: Attributes drawn when the environment was made, which the new one must have too.
MADE = {"gymnasium.envs.toy_text.frozen_lake.FrozenLakeEnv": ("desc",)}
