"""The environment of ``benchmarks/learning_together.py`` is what its table says."""

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from sb3_contrib.common.maskable.utils import is_masking_supported
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import DummyVecEnv


@pytest.fixture(scope="module")
def script(import_script):
    return import_script("learning_together")


def walk(env, key):
    """Ahead to the vault, then the key: all observations, all rewards, and whether it was the end."""
    observations, rewards = [env.reset()[0]], []
    for action in [env.AHEAD] * env.LENGTH + [env.KEYS + key]:
        assert env.action_masks()[action]
        obs, reward, terminated, truncated, _ = env.step(action)
        observations.append(obs)
        rewards.append(reward)
    assert not truncated
    return np.array(observations), rewards, terminated


def test_vault_keeps_gymnasiums_rules_and_offers_masks(script):
    check_env(script.Vault(), skip_render_check=True)
    assert is_masking_supported(DummyVecEnv([script.Vault]))


def test_remembering_the_sign_opens_the_vault_every_time(script):
    env = script.Vault()
    for seed in range(20):
        env.reset(seed=seed)
        sign = [obs[1:] for obs in walk(env, 0)[0] if obs[1:].any()]
        assert len(sign) == 1
        env.reset(seed=seed)
        # The same generator: the second episode of this seed has the sign that was read.
        observations, rewards, terminated = walk(env, int(sign[0].argmax()))
        assert terminated and sum(rewards) == pytest.approx(1 - (env.LENGTH + 1) / env.MAX_STEPS)


def test_without_memory_one_key_in_eight_is_right(script):
    """What is seen at the vault does not depend on the right key, and each key is right equally often."""
    env = script.Vault()
    at_vault, opened = set(), 0
    env.reset(seed=0)
    for episode in range(800):
        observations, rewards, terminated = walk(env, episode % env.N_KEYS)
        assert terminated
        at_vault.add(observations[-1].tobytes())
        opened += rewards[-1] > 0
    assert len(at_vault) == 1
    assert opened / 800 == pytest.approx(1 / env.N_KEYS, abs=0.03)


def test_what_is_impossible_only_takes_time(script):
    env = script.Vault()
    for position in (0, 1, env.SIGN, env.LENGTH):
        env.reset(seed=0)
        for _ in range(position):
            env.step(env.AHEAD)
        masks = env.action_masks()
        assert masks.shape == (env.action_space.n,) and masks.any()
        assert masks[env.BACK] == (position > 0) and masks[env.AHEAD] == (position < env.LENGTH)
        assert (masks[env.KEYS :] == (position == env.LENGTH)).all()
        for action in np.flatnonzero(~masks):
            obs, reward, terminated, truncated, _ = env.step(action)
            assert obs[0] == pytest.approx(position / env.LENGTH)
            assert reward == pytest.approx(-1 / env.MAX_STEPS) and not terminated and not truncated


def test_time_is_up_in_the_end(script):
    env = script.Vault()
    env.reset(seed=0)
    ends = [env.step(env.KEYS)[2:4] for _ in range(env.MAX_STEPS)]
    assert ends == [(False, False)] * (env.MAX_STEPS - 1) + [(False, True)]


class Arrivals(BaseCallback):
    """Count episodes, and those that ended at the vault."""

    def _on_training_start(self):
        self.n_episodes = self.n_arrived = 0

    def _on_step(self):
        for done, info in zip(self.locals["dones"], self.locals["infos"], strict=True):
            self.n_episodes += done
            self.n_arrived += done and not info["TimeLimit.truncated"]
        return self.num_timesteps < 4_000


@pytest.mark.parametrize(("contender", "low", "high"), [(0, 0.25, 0.75), (1, 0.0, 0.1)], ids=["gSDE", "white"])
def test_noise_of_an_episode_reaches_the_vault_untrained(script, contender, low, high):
    """Memory, masks and exploration of discrete actions at once."""
    name = list(script.CONTENDERS)[contender]
    model, arrivals = script.make_model(name, seed=0), Arrivals()
    model.learn(10_000, callback=arrivals)
    assert arrivals.n_episodes > 50
    assert low < arrivals.n_arrived / arrivals.n_episodes + 1e-9 < high
