"""Seeded faults: mistakes that a careless change could make, each of which the fast tests must catch.

    python tests/long/mutants.py                   # all, half an hour or more on two cores
    python tests/long/mutants.py --only gae-cut kl-reversed
    python tests/long/mutants.py --list

Each fault is put into a copy of the checkout, where the tests that should see it first run until one fails, and only if
none does all other fast tests. The checkout itself is never changed. Before, these first tests run in a copy without a
fault, since a test that fails there would catch everything. The exit status is 1 if a fault survived, or cannot be put
in any longer.
"""

import argparse
import os
import sys
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from shutil import copytree, ignore_patterns
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
#: What the tests do without; a copy of the rest takes a moment.
NOT_COPIED = ignore_patterns(".*", "__pycache__", "build", "dist", "_build", "*.egg-info", "logs")
#: The test that the faults can still be put in, which fails where one has been.
OWN_TEST = "tests/long/test_mutants.py"
#: Faults tried side by side, as ``make test`` uses two cores.
N_AT_ONCE = 2


class Fault(NamedTuple):
    """A mistake, as the replacement of a text that stands once in its file.

    :param name: what it is called
    :param file: in the package
    :param old: the text
    :param new: what takes its place
    :param tests: what should see it first, separated by blanks
    """

    name: str
    file: str
    old: str
    new: str
    tests: str

    def put_into(self, folder: Path) -> None:
        """Put the fault into a copy of the checkout.

        :raises ValueError: its text does not stand in the file exactly once
        """
        path = folder / "ppo_plus" / self.file
        text = path.read_text(encoding="utf-8")
        if text.count(self.old) != 1:
            raise ValueError(f"{self.name}: {self.old!r} is {text.count(self.old)} times in ppo_plus/{self.file}")
        path.write_text(text.replace(self.old, self.new), encoding="utf-8")


FORMULAS = (
    Fault(
        "gae-cut",
        "formulas/losses.py",
        "th.cat([episode_starts[1:], last_dones[None]])",
        "th.cat([episode_starts[:-1], last_dones[None]])",
        "tests/formulas/test_losses.py",
    ),
    Fault(
        "surrogate-optimistic",
        "formulas/losses.py",
        "-th.where(surrogate > bound",
        "-th.where(surrogate < bound",
        "tests/formulas/test_losses.py",
    ),
    Fault(
        "value-clip-optimistic",
        "formulas/losses.py",
        "th.max((returns - values).square(), clipped_error)",
        "th.min((returns - values).square(), clipped_error)",
        "tests/formulas/test_losses.py",
    ),
    Fault(
        "entropy-sign",
        "formulas/losses.py",
        "total + coefficients.ent_coef * entropy_loss",
        "total - coefficients.ent_coef * entropy_loss",
        "tests/formulas/test_losses.py",
    ),
    Fault(
        "early-stop-tolerance",
        "formulas/kl_control.py",
        "kl <= self.tolerance * target",
        "kl <= target",
        "tests/formulas/test_kl_control.py",
    ),
    Fault(
        "penalty-direction",
        "formulas/kl_control.py",
        "above=2.0, below=0.5",
        "above=0.5, below=2.0",
        "tests/formulas/test_kl_control.py",
    ),
    Fault(
        "cosine-turned",
        "formulas/schedules.py",
        "(1 - math.cos(",
        "(1 + math.cos(",
        "tests/formulas/test_schedules.py",
    ),
    Fault(
        "sde-no-detach",
        "formulas/exploration.py",
        "(features.detach().square() @",
        "(features.square() @",
        "tests/formulas/test_exploration.py",
    ),
    Fault(
        "colored-stands-still",
        "formulas/exploration.py",
        '"step": (step + 1) % self.horizon',
        '"step": step',
        "tests/formulas/test_exploration.py",
    ),
)
POLICY = (
    Fault(
        "action-unclipped",
        "policy/distributions.py",
        "np.minimum(np.maximum(actions, space.low), space.high)",
        "np.maximum(actions, space.low)",
        "tests/policy/test_distributions.py",
    ),
    Fault(
        "squash-slope",
        "policy/distributions.py",
        "super().log_prob(params, actions) - _log_tanh_slope(actions).sum(dim=1)",
        "super().log_prob(params, actions)",
        "tests/policy/test_distributions.py",
    ),
    Fault(
        "kl-reversed",
        "policy/distributions.py",
        "(old.exp() * (old.clamp(min=lowest) - new.clamp(min=lowest)))",
        "(new.exp() * (new.clamp(min=lowest) - old.clamp(min=lowest)))",
        "tests/policy/test_distributions.py",
    ),
    Fault(
        "action-start",
        "policy/distributions.py",
        ' + getattr(space, "start", 0)).astype',
        ").astype",
        "tests/policy/test_distributions.py",
    ),
    Fault(
        "masked-bits-swapped",
        "policy/distributions.py",
        "may_be_0, may_be_1 =",
        "may_be_1, may_be_0 =",
        "tests/policy/test_masking.py",
    ),
    Fault(
        "mask-of-resets",
        "policy/masking.py",
        'masks[getattr(env, "resetting", [])] = True',
        "pass",
        "tests/policy/test_masking.py tests/envs/test_vec_env.py",
    ),
    Fault(
        "masks-in-the-order-given",
        "policy/masking.py",
        "for key, sublayout in sublayouts.items()",
        "for key, sublayout in ((key, sublayouts[key]) for key in parts)",
        "tests/policy/test_masking.py",
    ),
    Fault(
        "predicts-what-is-not-finite",
        "policy/policies.py",
        "if not is_finite(made) and not (",
        "if False and not (",
        "tests/policy/test_policies.py",
    ),
    Fault(
        "nothing-allowed-anywhere",
        "policy/masking.py",
        "axis=-1).all(axis=-1)",
        "axis=-1).any(axis=-1)",
        "tests/policy/test_masking.py",
    ),
    Fault(
        "memory-of-the-sequence-before",
        "policy/recurrent.py",
        "tuple(part * layout.keep for part in state)",
        "tuple(state)",
        "tests/policy/test_memory.py",
    ),
    Fault(
        "gru-bias-remembered",
        "policy/recurrent.py",
        "-weights[2].chunk(3)[2] if self.bias else th.zeros_like(n)",
        "th.zeros_like(n)",
        "tests/policy/test_memory.py",
    ),
    Fault(
        "shared-memory-no-detach",
        "policy/memory.py",
        'outputs["actor"].detach() if self.shared_lstm',
        'outputs["actor"] if self.shared_lstm',
        "tests/policy/test_recurrent.py",
    ),
    Fault(
        "memory-of-other-episode",
        "policy/memory.py",
        "memory = reset_memory(memory, episode_starts)",
        "pass",
        "tests/policy/test_recurrent.py",
    ),
    Fault(
        "scan-across-episodes",
        "policy/scan.py",
        "linear_recurrence(decay * keep, ",
        "linear_recurrence(decay * th.ones_like(keep), ",
        "tests/policy/test_memory.py",
    ),
    Fault(
        "attention-beyond-its-window",
        "policy/attention.py",
        "(age <= self.n_past)",
        "(age < len(times))",
        "tests/policy/test_attention.py",
    ),
    Fault(
        "observation-start",
        "policy/observations.py",
        ".long() - to_device(starts, observations.device)",
        ".long()",
        "tests/policy/test_observations.py",
    ),
    Fault(
        "output-gain",
        "policy/policies.py",
        "(self.action_net, 0.01)",
        "(self.action_net, 1.0)",
        "tests/policy/test_policies.py tests/test_keystone.py",
    ),
    Fault(
        "critic-sees-actor",
        "policy/policies.py",
        "latent_vf = self.mlp_extractor.forward_critic(features.critic)",
        "latent_vf = self.mlp_extractor.forward_critic(features.actor)",
        "tests/policy/test_policies.py tests/policy/test_recurrent.py",
    ),
    Fault(
        "actor-sees-critics",
        "policy/policies.py",
        "return self._make_extractor(self.actor_space)",
        "return self._make_extractor(self.critic_space)",
        "tests/policy/test_actor_and_critic_keys.py",
    ),
    Fault(
        "critics-extractor-of-actors",
        "policy/policies.py",
        "inputs = self._inputs(obs, of_critic=True)",
        "inputs = self._inputs(obs)",
        "tests/policy/test_actor_and_critic_keys.py",
    ),
    Fault(
        "values-of-nothing",
        "policy/policies.py",
        "self.vf_features_extractor.features_dim), th.nan)",
        "self.vf_features_extractor.features_dim), 0.0)",
        "tests/policy/test_actor_and_critic_keys.py",
    ),
    Fault(
        "everything-for-the-actor",
        "policy/observations.py",
        "if actor_keys is None and critic_keys is not None:",
        "if False:",
        "tests/policy/test_actor_and_critic_keys.py",
    ),
    Fault(
        "predict-noise-held",
        "policy/policies.py",
        "self._fit_noise(len(params), episode_start)",
        "self._fit_noise(len(params))",
        "tests/policy/test_policies.py tests/ppo/test_exploration.py",
    ),
    Fault(
        "custom-policy-scale",
        "policy/adapter.py",
        "policy.unscale_action if policy.squash_output else np.asarray",
        "np.asarray",
        "tests/policy/test_adapter.py",
    ),
    Fault(
        "custom-policy-entropy",
        "policy/adapter.py",
        "-log_prob if entropy is None",
        "log_prob if entropy is None",
        "tests/policy/test_adapter.py",
    ),
    Fault(
        "net-arch-unchecked",
        "policy/arguments.py",
        '{"pi": "actor", "vf": "critic"}',
        '{"pi": "actor", "vf": "critic", "qf": "q"}',
        "tests/policy/test_arguments.py",
    ),
)
UPDATE = (
    Fault(
        "memory-of-other-sequence",
        "update/minibatch.py",
        "indices[::length] // length",
        "th.arange(len(indices) // length)",
        "tests/update/test_minibatch.py",
    ),
    Fault(
        "weights-not-returned",
        "update/minibatch.py",
        "p.data, p.grad = data.copy_(p.data), grad",
        "p.data, p.grad = data, grad",
        "tests/update/test_minibatch.py",
    ),
    Fault(
        "step-counts-shared",
        "update/minibatch.py",
        "parts = [value.clone() for _ in params]",
        "parts = [value for _ in params]",
        "tests/update/test_minibatch.py",
    ),
    Fault(
        "encoder-gradient-lost",
        "update/minibatch.py",
        "else a if b is None else a + b",
        "else a",
        "tests/update/test_minibatch.py",
    ),
    Fault(
        "gradient-amplified",
        "update/minibatch.py",
        "(max_norm / (norm + 1e-6)).clamp(max=1.0)",
        "max_norm / (norm + 1e-6)",
        "tests/update/test_minibatch.py",
    ),
    Fault(
        "stopped-step-taken",
        "update/minibatch.py",
        "applied = counted & next_state.running",
        "applied = counted",
        "tests/update/test_minibatch.py",
    ),
    Fault(
        "learning-rate-unscaled",
        "update/minibatch.py",
        "coefficients.learning_rate * next_state.lr_scale",
        "coefficients.learning_rate",
        "tests/update/test_minibatch.py",
    ),
    Fault(
        "moments-of-skipped",
        "update/minibatch.py",
        "moment.copy_(th.where(applied, new_moments[name], moment))",
        "moment.copy_(new_moments[name])",
        "tests/update/test_minibatch.py",
    ),
    Fault(
        "kl-of-all-epochs",
        "update/update.py",
        "return self._tables[-1]",
        "return th.cat(self._tables)",
        "tests/update/test_update.py",
    ),
    Fault(
        "skips-add-up",
        "update/update.py",
        "self.n_skipped = 0 if flag else self.n_skipped + 1",
        "self.n_skipped = self.n_skipped if flag else self.n_skipped + 1",
        "tests/update/test_update.py",
    ),
)
ROLLOUT = (
    Fault(
        "demonstrations-run-on",
        "demonstrations/cloning.py",
        "ends.roll(1)[:, None]",
        "th.zeros_like(ends)[:, None]",
        "tests/demonstrations/test_demonstrations.py",
    ),
    Fault(
        "padding-counts",
        "demonstrations/cloning.py",
        "        if batch.valid is not None:\n            values, params, batch",
        "        if False:\n            values, params, batch",
        "tests/demonstrations/test_demonstrations.py",
    ),
    Fault(
        "last-weights-stay",
        "demonstrations/cloning.py",
        "policy.load_state_dict(kept)",
        "pass",
        "tests/demonstrations/test_demonstrations.py",
    ),
    Fault(
        "demonstrated-choices-from-start",
        "policy/distributions.py",
        "np.asarray(actions - start, dtype=np.float32)",
        "np.asarray(actions, dtype=np.float32)",
        "tests/demonstrations/test_demonstrations.py",
    ),
    Fault(
        "anew-too-late",
        "rollout/buffer.py",
        "            if number and ",
        "            if number > 1 and ",
        "tests/rollout/test_reestimate.py",
    ),
    Fault(
        "anew-with-dropout",
        "rollout/buffer.py",
        "                policy.set_training_mode(False)\n",
        "",
        "tests/rollout/test_reestimate.py",
    ),
    Fault(
        "anew-over-the-rollout",
        "rollout/buffer.py",
        "                twin = self.twin()\n",
        "                twin = self\n",
        "tests/rollout/test_reestimate.py",
    ),
    Fault(
        "bootstraps-pile-up",
        "rollout/buffer.py",
        "gain if self._gain is None else gain - self._gain",
        "gain",
        "tests/rollout/test_reestimate.py",
    ),
    Fault(
        "acts-on-what-is-not-finite",
        "rollout/collector.py",
        "if not is_finite(step.values + step.log_probs):",
        "if False:",
        "tests/rollout/test_collector.py",
    ),
    Fault(
        "tensors-policy-unchecked",
        "rollout/tensor_collector.py",
        'for name in ("rewards", "values", "log_probs")]',
        'for name in ("rewards",)]',
        "tests/rollout/test_tensor_collector.py",
    ),
    Fault(
        "tensors-bootstrap-ended",
        "envs/tensors/vec_env.py",
        "truncated & ~terminated",
        "truncated",
        "tests/rollout/test_tensor_collector.py",
    ),
    Fault(
        "tensors-not-copied",
        "rollout/tensor_collector.py",
        "(stepped.obs, stepped.rewards, stepped.final_obs), copy=True)",
        "(stepped.obs, stepped.rewards, stepped.final_obs))",
        "tests/rollout/test_tensor_collector.py",
    ),
    Fault(
        "tensors-of-an-evaluation",
        "rollout/tensor_collector.py",
        "stepped = stepped._replace(obs=new_obs, rewards=rewards,",
        "stepped = stepped._replace(obs=new_obs,",
        "tests/rollout/test_tensor_collector.py",
    ),
    Fault(
        "tensors-final-unmasked",
        "rollout/tensor_collector.py",
        "final_obs = where(known[limited], own, final_obs)",
        "final_obs = own",
        "tests/rollout/test_tensor_collector.py",
    ),
    Fault(
        "lazy-twice",
        "rollout/tensor_collector.py",
        "    @cached_property\n    def value(",
        "    @property\n    def value(",
        "tests/rollout/test_tensor_collector.py",
    ),
    Fault(
        "no-bootstrap",
        "rollout/collector.py",
        "part.bootstrap_timeouts(rows, columns, final_values[:, k])",
        "pass",
        "tests/rollout tests/ppo/test_learn.py",
    ),
    Fault(
        "timeouts-overwrite",
        "rollout/buffer.py",
        "gain - self._gain, accumulate=True",
        "gain - self._gain, accumulate=False",
        "tests/rollout/test_buffer.py",
    ),
    Fault(
        "resets-are-steps",
        "rollout/buffer.py",
        'rows = th.from_numpy(self.valid.argsort(axis=0, kind="stable"))',
        'rows = th.from_numpy(np.sort(self.valid.argsort(axis=0, kind="stable"), axis=0))',
        "tests/rollout/test_buffer.py",
    ),
    Fault(
        "streams-share-a-critic",
        "rollout/collector.py",
        "part.bootstrap_timeouts(rows, columns, final_values[:, k])",
        "part.bootstrap_timeouts(rows, columns, final_values[:, 0])",
        "tests/rollout/test_streams.py",
    ),
    Fault(
        "streams-all-episodic",
        "rollout/streams.py",
        "starts if stream.episodic else th.zeros_like(starts)",
        "starts",
        "tests/rollout/test_streams.py",
    ),
    Fault(
        "streams-combined-twice",
        "rollout/buffer.py",
        "self.is_combined = True",
        "self.is_combined = False",
        "tests/rollout/test_streams.py",
    ),
    Fault(
        "multiplier-lowers-below-zero",
        "policy/cost.py",
        "integral = max(integral + cost.k_i * min(violation, 1.0), 0.0)",
        "integral = integral + cost.k_i * min(violation, 1.0)",
        "tests/policy/test_cost.py",
    ),
    Fault(
        "curiosity-not-divided",
        "rollout/streams.py",
        "rewards.div_(part.std.item()).clamp_(-CLIP, CLIP)",
        "pass",
        "tests/policy/test_curiosity.py",
    ),
    Fault(
        "final-observation-shared",
        "rollout/collector.py",
        "copied(final_obs, self._env.observation_space)",
        "final_obs",
        "tests/rollout tests/ppo/test_learn.py",
    ),
    Fault(
        "last-value-forgets",
        "rollout/collector.py",
        "carry or Carry(policy.init_memory(len(starts)))",
        "Carry(policy.init_memory(len(starts)))",
        "tests/rollout/test_collector.py tests/policy/test_recurrent.py",
    ),
    Fault(
        "noise-of-the-going-on",
        "rollout/collector.py",
        "starting := np.flatnonzero(starts)",
        "starting := np.flatnonzero(~np.asarray(starts))",
        "tests/rollout/test_collector.py tests/ppo/test_exploration.py",
    ),
    Fault(
        "order-of-storage",
        "rollout/buffer.py",
        "order = order % self.buffer_size * self.n_envs + order // self.buffer_size",
        "pass",
        "tests/rollout/test_buffer.py",
    ),
    Fault(
        "dtype-of-the-space",
        "rollout/buffer.py",
        "np.asarray(action, dtype=np.float32)",
        "np.asarray(action, dtype=self.action_space.dtype)",
        "tests/rollout/test_buffer.py",
    ),
    Fault(
        "terminated-is-truncated",
        "envs/vec_env.py",
        "bool(truncated[i] and not terminated[i])",
        "bool(truncated[i])",
        "tests/envs/test_vec_env.py",
    ),
    Fault(
        "reset-rows-learned",
        "envs/vec_env.py",
        "dones | resetting, infos",
        "dones, infos",
        "tests/envs/test_vec_env.py",
    ),
    Fault(
        "evaluation-moves-statistics",
        "rollout/evaluation.py",
        "assigned(layer, training=False, norm_reward=False)",
        "assigned(layer, norm_reward=False)",
        "tests/rollout/test_evaluation.py",
    ),
    Fault(
        "evaluation-unnoticed",
        "rollout/evaluation.py",
        "share_layers(vec_env, model.env)",
        "env is None",
        "tests/rollout/test_evaluation.py",
    ),
    Fault(
        "last-observation-overwritten",
        "envs/resumable/state.py",
        "obs, info = copied(obs, self.observation_space), copy.deepcopy(info)",
        "pass",
        "tests/rollout/test_collector.py",
    ),
    Fault(
        "episode-ended-outside-its-monitor",
        "envs/checks.py",
        '"l": len(rewards)',
        '"l": len(rewards) + 1',
        "tests/rollout/test_evaluation.py",
    ),
    Fault(
        "infos-of-later-steps",
        "envs/lean_vec_env.py",
        "value if type(value) in IMMUTABLE else copy.deepcopy(value)",
        "value",
        "tests/envs/test_checks.py",
    ),
    Fault(
        "unchecked-where-the-shape-fits",
        "envs/checks.py",
        "if values and not is_finite(array):",
        "if False:",
        "tests/envs/test_checks.py",
    ),
    Fault(
        "attributes-taken-for-layers",
        "envs/layers.py",
        "if isinstance(layer, (gym.Wrapper, VectorWrapper, Adapter)) else []",
        'if hasattr(layer, "env") else []',
        "tests/envs/test_layers.py",
    ),
    Fault(
        "options-without-any",
        "envs/vec_env.py",
        'return {"options": self._options[0]} if self._options[0] else {}',
        'return {"options": self._options[0]}',
        "tests/envs/test_vec_env.py",
    ),
    Fault(
        "asked-and-blamed",
        "envs/supervised/workers.py",
        "if not is_duty or isinstance(error, MemoryError)",
        "if isinstance(error, MemoryError)",
        "tests/envs/supervised/test_workers.py",
    ),
    Fault(
        "unread-answer",
        "envs/supervised/workers.py",
        "self.waiting = True\n",
        "self.waiting = False\n",
        "tests/envs/supervised/test_workers.py",
    ),
    Fault(
        "restarted-with-its-seed",
        "envs/supervised/vec_env.py",
        "self.env_seeds[j] = None if seed is None else derived_seed([seed, 1])",
        "self.env_seeds[j] = seed",
        "tests/envs/supervised/test_vec_env.py",
    ),
    Fault(
        "lost-processes-have-one-environment",
        "envs/supervised/vec_env.py",
        "group = list(worker.members) if fault.loses_process else [i]",
        "group = [i]",
        "tests/envs/supervised/test_vec_env.py",
    ),
    Fault(
        "masks-of-the-last-step",
        "envs/supervised/vec_env.py",
        "called, self._masks = [], None",
        "called = []",
        "tests/envs/supervised/test_vec_env.py",
    ),
    Fault(
        "values-move-with-their-scale",
        "policy/normalization.py",
        "weight.copy_(weight * scale)",
        "weight.copy_(weight)",
        "tests/policy/test_normalization.py",
    ),
    Fault(
        "first-values-in-the-unit-of-rewards",
        "policy/normalization.py",
        "return super().std * (self.count > 0)",
        "return super().std",
        "tests/policy/test_normalization.py",
    ),
    Fault(
        "resets-in-the-moments",
        "rollout/buffer.py",
        "if rows is None else tensor[rows]",
        "if True else tensor[rows]",
        "tests/policy/test_normalization.py",
    ),
    Fault(
        "last-observation-lent",
        "envs/supervised/vec_env.py",
        "return mapped(np.array, obs), rewards, dones, infos",
        "return obs, rewards, dones, infos",
        "tests/envs/supervised/test_vec_env.py",
    ),
)
COMPILING = (
    Fault(
        "constants-by-reference",
        "compiling/constants.py",
        "return kind, value.tobytes()",
        "return kind, value.data",
        "tests/compiling/test_constants.py",
    ),
    Fault(
        "keyword-defaults-unseen",
        "compiling/constants.py",
        "(value.__defaults__, value.__kwdefaults__, closure, vars(value), made_by)",
        "(value.__defaults__, closure, vars(value), made_by)",
        "tests/compiling/test_constants.py",
    ),
    Fault(
        "stale-cache",
        "compiling/compiled.py",
        "if known is not None and known.constants == constants:",
        "if known is not None:",
        "tests/compiling tests/test_compile.py",
    ),
    Fault(
        "pays-one-step-late",
        "compiling/compiled.py",
        "n_steps < WORTH_COMPILING",
        "n_steps <= WORTH_COMPILING",
        "tests/compiling/test_compiled.py",
    ),
    Fault(
        "stopped-for-ever",
        "update/update.py",
        "state._replace(running=th.tensor(True))",
        "state",
        "tests/update/test_update.py",
    ),
    Fault(
        "trial-changes-weights",
        "compiling/compiled.py",
        "mutable = tree_map(th.clone, args[:1])",
        "mutable = args[:1]",
        "tests/compiling/test_compiled.py",
    ),
    Fault(
        "trial-draws",
        "compiling/compiled.py",
        "with th.random.fork_rng(devices=gpu):",
        "with th.no_grad():",
        "tests/compiling/test_compiled.py",
    ),
    Fault(
        "recording-stays-where-weights-were",
        "compiling/compiled.py",
        "if addresses != self._addresses:",
        "if not self._addresses:",
        "tests/gpu/test_replay.py",
    ),
    Fault(
        "recording-keeps-its-inputs",
        "compiling/compiled.py",
        "own.copy_(tensor)",
        "own.data_ptr()",
        "tests/gpu/test_replay.py",
    ),
    Fault(
        "kernel-without-amsgrad",
        "compiling/torch_private.py",
        'group["fused"] and not group["amsgrad"]',
        'group["fused"]',
        "tests/compiling/test_torch_private.py tests/update",
    ),
    Fault(
        "buffers-left-behind",
        "compiling/torch_private.py",
        "replacement.copy_(store[name])",
        "pass",
        "tests/compiling tests/update",
    ),
    Fault(
        "product-unscaled",
        "compiling/torch_private.py",
        "small_mm(a, b) if beta == alpha == 1 else NotImplemented",
        "small_mm(a, b)",
        "tests/compiling/test_torch_private.py",
    ),
)
TOP = (
    Fault(
        "absent-learned",
        "envs/agents.py",
        "infos: list[Info] = [{} if stepped else {AUTORESET: True} for",
        "infos: list[Info] = [{} if stepped else {} for",
        "tests/envs/test_agents.py",
    ),
    Fault(
        "agents-end-at-limits",
        "envs/agents.py",
        "info[TIMEOUT] = bool(status[row] == TRUNCATED)",
        "info[TIMEOUT] = False",
        "tests/envs/test_agents.py",
    ),
    Fault(
        "absent-counted",
        "envs/normalization.py",
        "counted = rows[getattr(env, name)]",
        "counted = rows",
        "tests/envs/test_normalization.py tests/envs/test_agents.py",
    ),
    Fault(
        "snapshots-share-weights",
        "policy/arguments.py",
        "copy.deepcopy(policy, {id(part): None for part in unused} | results)",
        "copy.copy(policy)",
        "tests/test_league.py",
    ),
    Fault(
        "opponents-use-up-numbers",
        "league.py",
        "with th.random.fork_rng([]), th.inference_mode():",
        "with th.inference_mode():",
        "tests/test_league.py",
    ),
    Fault(
        "unbounded-update",
        "settings.py",
        "if settings.clip_range is None and not control.penalizes:",
        "if settings.clip_range is None and control is None:",
        "tests/test_settings.py tests/ppo/test_arguments.py",
    ),
    Fault(
        "sequences-unchecked",
        "settings.py",
        "if settings.n_steps % length or settings.batch_size % length:",
        "if settings.n_steps % length:",
        "tests/test_settings.py tests/policy/test_recurrent.py",
    ),
    Fault(
        "callback-class",
        "call.py",
        "is_function = callable(callback) and not isinstance(callback, type)",
        "is_function = callable(callback)",
        "tests/test_settings.py",
    ),
    Fault(
        "true-is-one",
        "require.py",
        "if isinstance(value, bool) or not isinstance(value, (int, np.integer)):",
        "if not isinstance(value, (int, np.integer)):",
        "tests/test_require.py",
    ),
    Fault(
        "large-is-infinite",
        "policy/observations.py",
        "        or float(np.abs(values).max(initial=0.0)) <= LARGEST\n",
        "",
        "tests/policy/test_observations.py",
    ),
    Fault(
        "schedule-below-zero",
        "ppo.py",
        "_remaining(min(num_timesteps, total_timesteps), total_timesteps)",
        "_remaining(num_timesteps, total_timesteps)",
        "tests/ppo/test_schedules.py tests/test_settings.py",
    ),
    Fault(
        "value-clip-of-sb3",
        "saving/sb3/from_sb3.py",
        '"value_clip": "plain", ',
        "",
        "tests/saving/sb3/test_from_sb3.py",
    ),
    Fault(
        "generators-forgotten",
        "saving/checkpoint/checkpoint.py",
        'process_state.set_generators(resumed["generators"])',
        "pass",
        "tests/saving/checkpoint/test_checkpoint.py",
    ),
    Fault(
        "iterations-from-zero",
        "ppo.py",
        "iteration = call.iteration\n",
        "iteration = 0\n",
        "tests/saving/checkpoint/test_checkpoint.py",
    ),
    Fault(
        "checkpoints-last",
        "call.py",
        "key=lambda root: not any(",
        "key=lambda root: any(",
        "tests/test_call.py",
    ),
    Fault(
        "total-of-another-call",
        "call.py",
        "if total_timesteps != self.total_timesteps:",
        "if False:",
        "tests/saving/checkpoint/test_checkpoint.py",
    ),
    Fault(
        "names-of-compiled-policies",
        "ppo.py",
        'original(value) if name == "policy" else value',
        "value",
        "tests/saving/test_model.py",
    ),
    Fault(
        "links-cut",
        "saving/checkpoint/process_state.py",
        "if os.path.realpath(path) != os.path.join(os.path.realpath(above), os.path.relpath(path, above)):",
        "if False:",
        "tests/saving/checkpoint/test_process_state.py",
    ),
    Fault(
        "arguments-of-callbacks-restored",
        "saving/checkpoint/process_state.py",
        "if name in fixed or not (",
        "if not (",
        "tests/saving/checkpoint/test_process_state.py",
    ),
    Fault(
        "export-unchecked",
        "saving/export.py",
        "if not gap.max() <= TOLERANCE:",
        "if not gap.max() <= 1 / TOLERANCE:",
        "tests/saving/test_export.py",
    ),
    Fault(
        "export-statistics-lost",
        "saving/export.py",
        "if normalization is not None and any(isinstance(one, VecNormalize)",
        "if normalization is None and any(isinstance(one, VecNormalize)",
        "tests/saving/test_export.py",
    ),
    Fault(
        "log-folder-of-a-file",
        "saving/model.py",
        'if folder is not None and not _is_below(folder) and "tensorboard_log" not in changes:',
        "if False:",
        "tests/saving/test_model.py",
    ),
    Fault(
        "buffers-not-counted",
        "saving/format/names.py",
        "self.left -= LEAST + _numbers_made(operation, args, kwargs)",
        "self.left -= LEAST",
        "tests/saving/format/test_names.py",
    ),
    Fault(
        "kl-memory-forgotten",
        "saving/model.py",
        '    "kl_memory": "trainer.kl_memory",\n',
        "",
        "tests/saving/test_model.py tests/saving/checkpoint/test_checkpoint.py",
    ),
    Fault(
        "configuration-kept",
        "saving/checkpoint/process_state.py",
        "if now[name] != configured.get(name)",
        "if True",
        "tests/saving/checkpoint/test_process_state.py",
    ),
    Fault(
        "logs-not-cut",
        "saving/checkpoint/process_state.py",
        "os.truncate(path, max(kept.get(name, 0), 0))",
        "pass",
        "tests/saving/checkpoint/test_process_state.py",
    ),
    Fault(
        "checkpoint-not-written",
        "zoo/train.py",
        "            checkpoints.write()\n",
        "            pass\n",
        "tests/zoo/test_train.py",
    ),
    Fault(
        "actions-not-copied",
        "envs/resumable/state.py",
        "action if type(action) in IMMUTABLE else copy.deepcopy(action)",
        "action",
        "tests/envs/resumable/test_state.py",
    ),
    Fault(
        "methods-set-by-files",
        "saving/format/names.py",
        ' or callable(defined) or hasattr(defined, "__get__")',
        "",
        "tests/saving/checkpoint/test_process_state.py tests/saving/test_model.py",
    ),
    Fault(
        "other-versions-read",
        "saving/format/container.py",
        "if number != VERSION:",
        "if number > VERSION:",
        "tests/saving/format/test_container.py",
    ),
    Fault(
        "imported-names-allowed",
        "saving/format/names.py",
        "is_part(member) and name_of(member) == name",
        "is_part(member)",
        "tests/saving/format/test_names.py",
    ),
    Fault(
        "classes-of-libraries-found",
        "saving/format/names.py",
        "or folder.name in _PACKAGES",
        "",
        "tests/saving/format/test_names.py",
    ),
    Fault(
        "state-of-another-optimizer",
        "saving/model.py",
        'if changed.keys() & {"optimizer_class", "optimizer_kwargs"}:',
        "if False:",
        "tests/saving/test_model.py",
    ),
    Fault(
        "vectors-of-another-width",
        "compiling/torch_private.py",
        'yield OPTIONS | {"cpp.simdlen": width, "cpp.vec_isa_ok": True}',
        "yield OPTIONS",
        "tests/compiling/test_torch_private.py",
    ),
)
ZOO = (
    Fault(
        "evaluation-seed",
        "zoo/experiment.py",
        "(experiment.seed + EVAL_SEED) % 2**32 if evaluation else experiment.seed",
        "experiment.seed",
        "tests/zoo/test_experiment.py",
    ),
    Fault(
        "normalized-returns",
        "zoo/experiment.py",
        "arguments.update(training=False, norm_reward=False)",
        "arguments.update(training=False)",
        "tests/zoo/test_experiment.py",
    ),
    Fault(
        "no-atari-entry",
        "zoo/hyperparams.py",
        '[*dict.fromkeys([env_id, bare]), *(["atari"] if is_atari(bare) else [])]',
        "[*dict.fromkeys([env_id, bare])]",
        "tests/zoo/test_hyperparams.py",
    ),
    Fault(
        "merged-backwards",
        "zoo/experiment.py",
        "{**getattr(self, name), **getattr(changed, name)}",
        "{**getattr(changed, name), **getattr(self, name)}",
        "tests/zoo/test_experiment.py",
    ),
    Fault(
        "checkpoints-too-rare",
        "zoo/train.py",
        "SavedModels(run.options.save_freq, run",
        "SavedModels(2 * run.options.save_freq, run",
        "tests/zoo/test_train.py tests/zoo/cli",
    ),
    Fault(
        "memory-not-played",
        "zoo/enjoy.py",
        "predict(obs, state, starts, self.deterministic)",
        "predict(obs, None, starts, self.deterministic)",
        "tests/zoo/test_enjoy.py",
    ),
    Fault(
        "interval-too-narrow",
        "zoo/results.py",
        "[(1 - LEVEL) / 2, (1 + LEVEL) / 2]",
        "[1 - LEVEL, LEVEL]",
        "tests/zoo/test_results.py",
    ),
    Fault(
        "episodes-unsorted",
        "zoo/results.py",
        'episodes = episodes[np.argsort(episodes[:, 0], kind="stable")]',
        "pass",
        "tests/zoo/test_results.py",
    ),
    Fault(
        "last-update-unevaluated",
        "callbacks.py",
        "_on_training_end(self) -> None:\n        self._evaluate(self.eval_freq > 0)",
        "_on_training_end(self) -> None:\n        pass",
        "tests/test_callbacks.py",
    ),
    Fault(
        "statistics-not-loaded",
        "saving/statistics.py",
        "normalize.obs_rms = saved.obs_rms",
        "pass",
        "tests/zoo/test_experiment.py",
    ),
    Fault(
        "near-one-unclipped",
        "zoo/tune/space.py",
        "number = min(max(value, self.low), self.high)",
        "number = value",
        "tests/zoo/tune/test_space.py",
    ),
    Fault(
        "one-comparison",
        "zoo/tune/report.py",
        "1 - ERROR_RATE / max(len(finalists), 1)",
        "1 - ERROR_RATE",
        "tests/zoo/tune/test_report.py",
    ),
    Fault(
        "lucky-winner",
        "zoo/tune/report.py",
        "gain is not None and gain.low > 0",
        "gain is not None and gain.value > 0",
        "tests/zoo/tune/test_report.py",
    ),
    Fault(
        "lock-too-late",
        "zoo/tune/jobs.py",
        '"BEGIN IMMEDIATE"',
        '"BEGIN"',
        "tests/zoo/tune/test_jobs.py",
    ),
    Fault(
        "password-shown",
        "zoo/tune/jobs.py",
        "{without_password(url)!r}",
        "{url!r}",
        "tests/zoo/tune/test_jobs.py",
    ),
    Fault(
        "worst-first",
        "zoo/tune/study.py",
        "(-trial.values[0]",
        "(trial.values[0]",
        "tests/zoo/tune/test_study.py",
    ),
    Fault(
        "seeds-seen-before",
        "zoo/tune/study.py",
        'for seed in plan.seeds("confirmation")',
        'for seed in plan.seeds("screening")',
        "tests/zoo/tune/test_study.py",
    ),
    Fault(
        "quarter-not-trimmed",
        "zoo/results.py",
        "trim_mean(scores, 0.25, axis=axis)",
        "trim_mean(scores, 0.1, axis=axis)",
        "tests/zoo/test_results.py",
    ),
    Fault(
        "one-death-more",
        "zoo/tune/jobs.py",
        "+ 1 < MAX_DEATHS",
        "+ 1 <= MAX_DEATHS",
        "tests/zoo/tune/test_jobs.py",
    ),
    Fault(
        "seed-zero-random",
        "zoo/cli/experiments.py",
        "args.seed if args.seed >= 0 else",
        "args.seed if args.seed > 0 else",
        "tests/zoo/cli",
    ),
    Fault(
        "interrupt-succeeds",
        "zoo/cli/experiments.py",
        "sys.exit(128 + (came() or signal.SIGINT))",
        "sys.exit(0)",
        "tests/zoo/cli",
    ),
    Fault(
        "two-lines-of-error",
        "zoo/cli/arguments.py",
        "{' '.join(message.split())}",
        "{message}",
        "tests/zoo/cli/test_arguments.py",
    ),
)
DISTRIBUTED = (
    Fault(
        "ranks-share-a-seed",
        "distributed/ranks.py",
        "[seed, self.rank]",
        "[seed]",
        "tests/distributed/test_ranks.py",
    ),
)

FAULTS = FORMULAS + POLICY + UPDATE + ROLLOUT + COMPILING + DISTRIBUTED + TOP + ZOO

#: Libraries that tests load, loaded once for all processes; not the package, which each loads from its own copy.
LIBRARIES = ["gymnasium", "hypothesis", "matplotlib.pyplot", "optuna", "sb3_contrib", "scipy.stats", "torch"]


class FirstFailure:
    """A plugin of pytest that remembers which test failed first."""

    name: str | None = None

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed and self.name is None:
            self.name = report.nodeid

    pytest_collectreport = pytest_runtest_logreport


def run_tests(folder: Path, *arguments: str) -> str | None:
    """Run fast tests in a copy of the checkout, in a process that is used for nothing else.

    :param folder: the copy; its package is the one that they import, in processes of their own as well
    :param arguments: which tests, as arguments of pytest
    :return: the first one that failed; ``None``: all passed
    :raises RuntimeError: they could not be run, or imported another package
    """
    os.chdir(folder)
    # Before the checkout, which the environment has installed.
    os.environ["PYTHONPATH"] = str(folder)
    sys.path.insert(0, str(folder))
    log = folder / "tests.log"
    for stream in (1, 2):
        os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), stream)
    failure = FirstFailure()
    options = ["-x", "-q", "-m", "not slow", "-p", "no:cacheprovider", f"--ignore={OWN_TEST}"]
    ended = pytest.main([*options, *arguments], [failure])
    if not str(sys.modules["ppo_plus"].__file__).startswith(str(folder)):
        raise RuntimeError(f"the tests imported {sys.modules['ppo_plus'].__file__}, and not the copy")
    if ended not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        raise RuntimeError(f"pytest {' '.join(arguments)} ended with {ended!r}: {log.read_text()}")
    return failure.name


@contextmanager
def copied() -> Iterator[Path]:
    """A copy of the checkout, for a while."""
    with TemporaryDirectory() as parent:
        folder = Path(parent, ROOT.name)
        copytree(ROOT, folder, ignore=NOT_COPIED)
        yield folder


def fails_without_fault(pool: Executor, path: str) -> str | None:
    """The first test of a file that fails as the package is, if there is one."""
    with copied() as folder:
        return pool.submit(run_tests, folder, path).result()


def find_catcher(pool: Executor, fault: Fault) -> str | None:
    """The first test that fails with a fault; ``None``: it survives."""
    with copied() as folder:
        fault.put_into(folder)
        first = fault.tests.split()
        others = ["tests", *(f"--ignore={path}" for path in first)]
        return pool.submit(run_tests, folder, *first).result() or pool.submit(run_tests, folder, *others).result()


def main() -> None:
    by_name = {fault.name: fault for fault in FAULTS}
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--only", nargs="+", choices=by_name, metavar="NAME", help="these faults alone")
    options.add_argument("--list", action="store_true", help="print the faults and leave it at that")
    args = options.parse_args()
    faults = [by_name[name] for name in args.only or by_name]
    if args.list:
        for fault in faults:
            print(f"{fault.name:30} {fault.file:28} {fault.old}  ->  {fault.new}")
        return
    os.environ["OMP_NUM_THREADS"] = "1"
    context = get_context("forkserver")
    context.set_forkserver_preload(LIBRARIES)
    n_survived = 0
    with (
        ProcessPoolExecutor(N_AT_ONCE, context, max_tasks_per_child=1) as pool,
        ThreadPoolExecutor(N_AT_ONCE) as threads,
    ):
        # Each file by itself, so that both cores are used.
        files = sorted({path for fault in faults for path in fault.tests.split()})
        failing = [name for name in threads.map(partial(fails_without_fault, pool), files) if name]
        if failing:
            raise SystemExit(f"without any fault fail {', '.join(failing)}")
        for fault, catcher in zip(faults, threads.map(partial(find_catcher, pool), faults), strict=True):
            n_survived += catcher is None
            verdict = "SURVIVED" if catcher is None else f"caught by {catcher}"
            print(f"{fault.name:30} {fault.file:28} {verdict}", flush=True)
    print(f"{len(faults) - n_survived} of {len(faults)} faults were caught")
    sys.exit(n_survived > 0)


if __name__ == "__main__":
    main()
