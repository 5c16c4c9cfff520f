"""Environments and wrappers that are known, by the names of their classes: which of them can be replayed, and which of
their attributes change while they run.

A subclass may have other attributes that change, so it is not known.
"""

from typing import Any

_GYM, _SB3, _CONTRIB = "gymnasium.wrappers.", "stable_baselines3.common.", "sb3_contrib.common.wrappers."

#: Modules of wrappers of single environments whose attributes do not change.
STATELESS = tuple(f"{_GYM}transform_{name}." for name in ("action", "observation", "reward"))
#: Other wrappers of single environments, and the attributes that change while they run.
WRAPPERS: dict[str, tuple[str, ...]] = {
    f"{_GYM}common.OrderEnforcing": (),
    f"{_GYM}common.PassiveEnvChecker": (),
    f"{_GYM}common.TimeLimit": ("_elapsed_steps",),
    f"{_GYM}common.RecordEpisodeStatistics": (
        *("episode_count", "time_queue", "return_queue", "length_queue", "episode_returns", "episode_lengths"),
    ),
    f"{_GYM}stateful_action.RepeatAction": (),
    f"{_GYM}stateful_action.StickyAction": ("last_action", "is_sticky_actions", "num_repeats", "repeats_taken"),
    f"{_GYM}stateful_observation.DelayObservation": ("observation_queue",),
    f"{_GYM}stateful_observation.FrameStackObservation": ("obs_queue", "padding_value"),
    f"{_GYM}stateful_observation.MaxAndSkipObservation": ("_obs_buffer",),
    f"{_GYM}stateful_observation.NormalizeObservation": ("obs_rms", "_update_running_mean"),
    f"{_GYM}stateful_observation.TimeAwareObservation": ("timesteps",),
    f"{_GYM}stateful_reward.NormalizeReward": ("return_rms", "discounted_reward", "_update_running_mean"),
    f"{_SB3}atari_wrappers.ClipRewardEnv": (),
    f"{_SB3}atari_wrappers.MaxAndSkipEnv": ("_obs_buffer",),
    f"{_SB3}atari_wrappers.StickyActionEnv": ("_sticky_action",),
    f"{_SB3}atari_wrappers.WarpFrame": (),
    f"{_SB3}monitor.Monitor": (
        *("episode_returns", "episode_lengths", "episode_times", "total_steps"),
        *("rewards", "needs_reset", "current_reset_info", "t_start"),
    ),
    f"{_CONTRIB}action_masker.ActionMasker": (),
    f"{_CONTRIB}time_feature.TimeFeatureWrapper": ("_current_step",),
}
#: The attributes that a reset does not set and that change what the environment returns. An episode that ends within
#: the first skipped frames shows frames of the one before.
BEFORE_RESET = ("_obs_buffer", "obs_rms", "return_rms", "discounted_reward", "_update_running_mean")

_PENDING = ("_seeds", "_options")
_SUPERVISED = ("n_restarts", "n_steps", "env_seeds", "last_obs", "_attributes", "_replaced")
#: Vectorized environments of single ones, likewise.
VEC_ENVS: dict[str, tuple[str, ...]] = {
    f"{_SB3}vec_env.dummy_vec_env.DummyVecEnv": _PENDING,
    f"{_SB3}vec_env.subproc_vec_env.SubprocVecEnv": _PENDING,
    "ppo_plus.envs.checks.LeanVecEnv": _PENDING,
    "ppo_plus.envs.supervised.vec_env.SupervisedVecEnv": (*_PENDING, *_SUPERVISED),
}
_NORMALIZED = ("obs_rms", "ret_rms", "returns", "old_obs", "old_reward", "training", "norm_reward")
#: Wrappers of vectorized environments, and the attributes that change while they run.
VEC_WRAPPERS: dict[str, tuple[str, ...]] = {
    f"{_SB3}vec_env.vec_check_nan.VecCheckNan": ("_user_warned",),
    f"{_SB3}vec_env.vec_extract_dict_obs.VecExtractDictObs": (),
    f"{_SB3}vec_env.vec_frame_stack.VecFrameStack": ("stacked_obs",),
    f"{_SB3}vec_env.vec_monitor.VecMonitor": ("episode_count", "episode_returns", "episode_lengths", "t_start"),
    f"{_SB3}vec_env.vec_normalize.VecNormalize": _NORMALIZED,
    "ppo_plus.envs.normalization.VecNormalizeTransitions": _NORMALIZED,
    f"{_SB3}vec_env.vec_transpose.VecTransposeImage": (),
    # A video that is being recorded when training stops is lost.
    f"{_SB3}vec_env.vec_video_recorder.VecVideoRecorder": ("step_id",),
}

#: Packages of environments whose episodes depend only on the generator, the arguments of the reset and the actions.
REPLAYABLE = tuple(f"gymnasium.envs.{name}." for name in ("classic_control", "toy_text", "box2d", "mujoco"))
#: Their worlds need to be new at each reset: what was in them before decides in which order Box2D sums up forces.
WORLDS = ("gymnasium.envs.box2d.bipedal_walker.BipedalWalker", "gymnasium.envs.box2d.car_racing.CarRacing")


def class_name(owner: Any) -> str:
    """The name of an object's class, as in the tables."""
    return f"{type(owner).__module__}.{type(owner).__qualname__}"


def changing(wrapper: Any) -> tuple[str, ...] | None:
    """The attributes of a wrapper that change while it runs; ``None``: the wrapper is not known."""
    name = class_name(wrapper)
    return () if name.startswith(STATELESS) else WRAPPERS.get(name)
