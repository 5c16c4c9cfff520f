"""The environment of ``benchmarks/learning_together.py`` is what its table says."""

import learning_together
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from sb3_contrib.common.maskable.utils import is_masking_supported
from stable_baselines3.common.vec_env import DummyVecEnv


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


def test_vault_keeps_gymnasiums_rules_and_offers_masks():
    check_env(learning_together.Vault(), skip_render_check=True)
    assert is_masking_supported(DummyVecEnv([learning_together.Vault]))


def test_remembering_the_sign_opens_the_vault_every_time():
    env = learning_together.Vault()
    for seed in range(20):
        env.reset(seed=seed)
        sign = [obs[1:] for obs in walk(env, 0)[0] if obs[1:].any()]
        assert len(sign) == 1
        env.reset(seed=seed)
        # The same generator: the second episode of this seed has the sign that was read.
        observations, rewards, terminated = walk(env, int(sign[0].argmax()))
        assert terminated and sum(rewards) == pytest.approx(1 - (env.LENGTH + 1) / env.MAX_STEPS)


def test_without_memory_one_key_in_eight_is_right():
    """What is seen at the vault does not depend on the right key, and each key is right equally often."""
    env = learning_together.Vault()
    at_vault, opened = set(), 0
    env.reset(seed=0)
    for episode in range(800):
        observations, rewards, terminated = walk(env, episode % env.N_KEYS)
        assert terminated
        at_vault.add(observations[-1].tobytes())
        opened += rewards[-1] > 0
    assert len(at_vault) == 1
    assert opened / 800 == pytest.approx(1 / env.N_KEYS, abs=0.03)
