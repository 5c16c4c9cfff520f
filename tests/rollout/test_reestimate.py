"""Recomputed advantages are those of a plain loop over the rollout with the weights of that moment."""

import copy

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from compiled import assert_trained_alike, needs_compiler, parameters
from envs import ACTIONS, OBSERVATIONS, POLICIES, KeyMaskedEnv, MaskedEnv, RandomEnv, vec
from models import SMALL
from parametrization import sample
from stable_baselines3.common.callbacks import BaseCallback

from ppo_plus import PPO_Plus, RolloutBuffer
from ppo_plus.policy.observations import to_network
from ppo_plus.rollout import buffer as buffers
from ppo_plus.trees import tree_map

T, N = 16, 2
GAMMA, LAMBDA = 0.9, 0.8


class Facts(BaseCallback):
    """What the environments gave and the policy remembered, step by step, of the last rollout."""

    def _on_rollout_start(self):
        self.steps = []

    def _on_step(self):
        kept = {name: copy.deepcopy(self.locals[name]) for name in ("rewards", "dones", "infos", "new_obs")}
        self.steps.append(kept | {"memory": tree_map(th.clone, self.model.position.carry.memory)})
        return True


class Epochs(PPO_Plus):
    """Remembers weights and estimates at the first minibatch of each epoch."""

    def train(self):
        self.epochs, minibatches = [], self.rollout_buffer.minibatches

        def noted(batch_size, rollout):
            for i, (data, indices) in enumerate(minibatches(batch_size, rollout)):
                if i == 0:
                    weights = {name: value.clone() for name, value in self.policy.state_dict().items()}
                    self.epochs.append(
                        (weights, data.advantages.clone(), data.returns.clone(), data.old_values.clone())
                    )
                yield data, indices

        self.rollout_buffer.minibatches = noted
        super().train()
        del self.rollout_buffer.minibatches


CASES = {
    "discrete": ("discrete", {}),
    "box": ("box", {"use_sde": True}),
    "mixed, masks": ("mixed", {"env_class": MaskedEnv}),
    "masks in observations": ("multidiscrete", {"env_class": KeyMaskedEnv, "action_mask_key": "mask"}),
    "Dict": ("multibinary", {"observation": "dict"}),
    "LSTM": ("discrete", {"memory": "Lstm"}),
    "LSTM of the actor alone": ("box", {"memory": "Lstm", "policy_kwargs": SMALL | {"enable_critic_lstm": False}}),
    "GRU, masks, gSDE": ("mixed", {"memory": "Gru", "env_class": MaskedEnv, "use_sde": True}),
}


def make(case, cls=Epochs, **given):
    kind, options = CASES[case]
    options = dict(options)
    observation, memory = options.pop("observation", "box"), options.pop("memory", "")
    env_class = options.pop("env_class", RandomEnv)
    policy = POLICIES.get(observation, "MlpPolicy").replace("Policy", f"{memory}Policy")
    if env_class is KeyMaskedEnv:
        policy, observation = "MultiInputPolicy", "dict"
    if memory:
        options = {"policy_kwargs": SMALL, "sequence_length": 4} | options
    env = vec(ACTIONS[kind], OBSERVATIONS[observation], N, env_class)
    sizes = dict(n_steps=T, batch_size=8, n_epochs=3, learning_rate=1e-2, gamma=GAMMA, gae_lambda=LAMBDA)
    settings = dict(recompute_advantages=True, compile=False, seed=0, device="cpu")
    return cls(policy, env, **sizes | settings | options | given)


def row(tree, *where):
    """These rows of a nesting of arrays or tensors, or of one."""
    return tree_map(lambda part: part[where], tree)


def values_of(policy, buffer, steps):
    """V of each observation and of each observation after it, by loops over the time."""
    before, after = np.zeros((T, N)), np.zeros((T, N))
    length = T // len(buffer.memories) if buffer.memories else None
    masks = None if buffer.masks is None else th.ones(1, buffer.masks.shape[2], dtype=th.bool)

    def value(obs, memory, start=False):
        obs = tree_map(lambda array: np.asarray(array)[None], obs)
        starts = th.tensor([start]) if memory else None
        features, memory = policy.encode_step(to_network(obs, policy.observation_space, policy.device), memory, starts)
        return policy.heads(features, masks).values.item(), memory

    for n in range(N):
        memory = {}
        one = slice(n, n + 1)
        for t in range(T):
            if length is not None and t % length == 0:
                memory = row(buffer.memories[t // length], one)
            obs = row(
                buffer.observations if isinstance(buffer.observations, np.ndarray) else {**buffer.observations}, t, n
            )
            before[t, n], memory = value(obs, memory, bool(buffer.episode_starts[t, n]))
            step = steps[t]
            if step["dones"][n] and step["infos"][n]["TimeLimit.truncated"]:
                after[t, n], _ = value(step["infos"][n]["terminal_observation"], memory)
        for t, step in enumerate(steps):
            if not step["dones"][n]:
                # Of the last step, what is remembered is what the rollout ended with.
                last = (row(step["new_obs"], n), row(step["memory"], one))
                after[t, n] = before[t + 1, n] if t + 1 < T else value(*last)[0]
    return before, after


def estimates(policy, buffer, steps):
    """GAE and TD(λ), by the definition."""
    with th.no_grad():
        before, after = values_of(policy, buffer, steps)
    rewards, dones = (np.array([step[name] for step in steps]) for name in ("rewards", "dones"))
    advantages = np.zeros((T, N))
    for n in range(N):
        following = 0.0
        for t in reversed(range(T)):
            delta = rewards[t, n] + GAMMA * after[t, n] - before[t, n]
            following = delta + GAMMA * LAMBDA * (1 - dones[t, n]) * following
            advantages[t, n] = following
    return advantages, advantages + before


@pytest.mark.parametrize("case", sample(CASES, 2))
def test_each_epoch_sees_the_estimates_of_a_plain_loop(case):
    model, facts = make(case), Facts()
    model.learn(2 * T * N, facts)
    assert len(model.epochs) == 3
    ends = [info for step in facts.steps for info in step["infos"] if "terminal_observation" in info]
    assert {info["TimeLimit.truncated"] for info in ends} == {True, False}
    buffer, by_env = model.rollout_buffer, bool(model.rollout_buffer.memories)
    policy = copy.deepcopy(model.policy)
    policy.set_training_mode(False)
    seen = []
    for weights, *found, old_values in model.epochs:
        policy.load_state_dict(weights)
        for mine, plain in zip(found, estimates(policy, buffer, facts.steps), strict=True):
            plain = (plain.T if by_env else plain).reshape(-1)
            np.testing.assert_allclose(mine.numpy(), plain, rtol=1e-4, atol=1e-4)
        seen.append(found[1])
        # The old values are those of the rollout.
        assert th.equal(old_values, model.epochs[0][3])
    assert (seen[0] - seen[1]).abs().max() > 1e-2 and (seen[1] - seen[2]).abs().max() > 1e-2


class Writing(Facts):
    """Changes the rollout at its end."""

    def __init__(self, name, again=False):
        super().__init__()
        self.name, self.again = name, again

    def _on_rollout_end(self):
        buffer = self.model.rollout_buffer
        buffer.stored(self.name).add_(1.0)
        if self.name == "rewards":
            for step in self.steps:
                step["rewards"] = step["rewards"] + 1
        if self.again:
            self.model.collector.estimate(buffer)


@pytest.mark.parametrize("again", [False, True])
def test_all_epochs_use_rewards_as_a_callback_left_them(again):
    """Also if the callback has estimated advantages again itself."""
    model, facts = make("discrete"), Writing("rewards", again)
    model.learn(2 * T * N, facts)
    policy = copy.deepcopy(model.policy)
    for weights, *found, _ in model.epochs:
        policy.load_state_dict(weights)
        for mine, plain in zip(found, estimates(policy, model.rollout_buffer, facts.steps), strict=True):
            np.testing.assert_allclose(mine.numpy(), plain.reshape(-1), rtol=1e-4, atol=1e-4)


def test_estimates_that_a_callback_wrote_are_replaced():
    models = [make("discrete").learn(T * N, callback) for callback in (None, Writing("advantages"), Writing("returns"))]
    assert all(th.equal(parameters(models[0]), parameters(model)) for model in models[1:])


@pytest.mark.parametrize("case", sample(CASES, 3))
def test_the_buffer_keeps_the_rollout(case):
    class Before(Epochs):
        def train(self):
            buffer = self.rollout_buffer
            kept = {name: getattr(buffer, name).copy() for name in ("rewards", "values", "advantages", "returns")}
            super().train()
            for name, array in kept.items():
                np.testing.assert_array_equal(getattr(buffer, name), array, err_msg=name)

    model = make(case, Before).learn(T * N)
    residual = (model.rollout_buffer.returns - model.rollout_buffer.values).var()
    explained = model.logger.name_to_value["train/explained_variance"]
    assert explained == pytest.approx(1 - residual / model.rollout_buffer.returns.var(), abs=1e-5)


@pytest.mark.parametrize("case", sample(CASES, 3))
def test_the_first_epoch_is_the_same_to_the_bit(case):
    models = [make(case, PPO_Plus, n_epochs=1, recompute_advantages=each).learn(2 * T * N) for each in (True, False)]
    assert th.equal(*map(parameters, models))
    models = [make(case, recompute_advantages=each).learn(T * N) for each in (True, False)]
    one, other = (model.epochs[1][0] for model in models)
    assert all(th.equal(one[name], other[name]) for name in one)
    assert not th.equal(*map(parameters, models))


class Doubling(RolloutBuffer):
    """Another estimate of advantages."""

    def compute_returns_and_advantage(self, last_values, dones):
        super().compute_returns_and_advantage(last_values, dones)
        self.advantages = self.advantages * 2


STEADY = {
    **{case: {"case": case} for case in CASES},
    "resets take a step": {"autoreset": "NEXT_STEP"},
    "resets take a step, LSTM": {"autoreset": "NEXT_STEP", "case": "LSTM"},
    "custom buffer": {"rollout_buffer_class": Doubling},
    "normalized": {"normalize_advantage": "rollout"},
}


def assert_steady(model):
    """The epochs of an update in which nothing was learned."""
    _, *first, _ = model.epochs[0]
    assert len(model.epochs) == 3 and first[0].std() > 0.1
    for _, *found, _ in model.epochs[1:]:
        for mine, other in zip(found, first, strict=True):
            th.testing.assert_close(mine, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("case", sample(STEADY, 2))
def test_while_nothing_is_learned_all_estimates_are_the_first(case):
    options = dict(STEADY[case])
    autoreset = options.pop("autoreset", None)
    model = make(options.pop("case", "discrete"), learning_rate=0.0, **options)
    if autoreset is not None:
        mode = gym.vector.AutoresetMode[autoreset]
        model.set_env(gym.vector.SyncVectorEnv([lambda: RandomEnv(ACTIONS["discrete"])] * N, autoreset_mode=mode))
    model.learn(2 * T * N)
    assert autoreset is None or not model.rollout_buffer.valid.all()
    assert_steady(model)


def test_values_are_asked_for_in_parts_of_whole_sequences(monkeypatch):
    models = []
    for at_once in (1024, 6):
        monkeypatch.setattr(buffers, "AT_ONCE", at_once)
        models.append([make(case).learn(T * N) for case in ("discrete", "LSTM")])
    for one, other in zip(*models, strict=True):
        th.testing.assert_close(*map(parameters, (one, other)), rtol=1e-4, atol=1e-5)


def test_dropout_is_off_while_values_are_estimated_and_on_again():
    class Asking(Epochs):
        def compute_loss(self, batch, coefficients):
            assert self.policy.training
            return super().compute_loss(batch, coefficients)

    def critic(n_in, n_out):
        return th.nn.Sequential(th.nn.Linear(n_in, 32), th.nn.Dropout(), th.nn.Linear(32, n_out))

    assert_steady(make("discrete", Asking, learning_rate=0.0, policy_kwargs=dict(critic=critic)).learn(T * N))


def test_rollout_advantages_are_normalized_again():
    model = make("discrete", normalize_advantage="rollout").learn(T * N)
    for _, advantages, *_ in model.epochs:
        assert advantages.mean().abs() < 1e-5 and abs(advantages.std() - 1) < 1e-5


def test_an_update_that_the_kl_control_stops_estimates_no_more():
    model = make("discrete", target_kl=1e-9).learn(T * N)
    assert len(model.epochs) == 1


@needs_compiler
@pytest.mark.usefixtures("traced")
@pytest.mark.slow
@pytest.mark.parametrize(("case", "given"), [("box", dict(kl_control="penalty", target_kl=0.01)), ("LSTM", {})])
def test_compiled_and_eager_train_the_same(case, given):
    eager, compiled = (
        make(case, PPO_Plus, compile=each, learning_rate=1e-3, **given).learn(2 * T * N) for each in (False, True)
    )
    assert_trained_alike(eager, compiled)
