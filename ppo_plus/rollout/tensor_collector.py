"""Collecting from environments in tensors: nothing leaves the device until a rollout ends, and then once.

What the host needs to know of a rollout (whether its numbers are finite, which episodes have ended, how many time
limits there were, what to log) is computed on the device and read in one copy.
"""

import warnings
from collections.abc import Callable, Iterator, MutableMapping
from functools import cached_property
from operator import itemgetter
from typing import Any

import numpy as np
import torch as th
from stable_baselines3.common.vec_env import VecEnv

from ppo_plus.envs.checked_envs import CheckedEnvs
from ppo_plus.envs.tensors.env import as_numpy
from ppo_plus.envs.tensors.vec_env import Stepped, TensorVecEnv
from ppo_plus.policy.masking import MaskSource, flat_masks, nothing_allowed
from ppo_plus.policy.observations import not_finite, require_finite
from ppo_plus.policy.policies import PolicyOutput
from ppo_plus.rollout.buffer import RolloutBuffer
from ppo_plus.rollout.collector import Collector, EnvStep, Position, RolloutPlan, RowsAndColumns, Tree, restart, where
from ppo_plus.rollout.streams import stream_tensors
from ppo_plus.trees import to_device, tree_leaves, tree_map
from ppo_plus.update.minibatch import read


class Lazy:
    """A value that is computed on first access."""

    def __init__(self, make: Callable[[], Any]):
        self._make = make

    @cached_property
    def value(self) -> Any:
        """The value."""
        return self._make()


class LazyLocals(dict[str, Any]):
    """A dict that returns the value of a :class:`Lazy` entry, however it is read."""

    # A dict's own methods read the entries themselves, those of a mapping call `__getitem__`.
    get, setdefault = MutableMapping.get, MutableMapping.setdefault  # type: ignore[assignment]
    values, items = MutableMapping.values, MutableMapping.items  # type: ignore[assignment]

    def __getitem__(self, key: str) -> Any:
        value = super().__getitem__(key)
        return value.value if isinstance(value, Lazy) else value

    def __iter__(self) -> Iterator[str]:
        # Because this method is defined, `dict(locals)` and `{**locals}` read each value.
        return super().__iter__()

    def pop(self, key: str, *default: Any) -> Any:
        value = super().pop(key, *default)
        return value.value if isinstance(value, Lazy) else value

    def copy(self) -> dict[str, Any]:
        return dict(self)


class TensorCollector(Collector):
    """Collects one rollout from environments in tensors. The position has tensors on the plan's device."""

    #: What the simulator returned for the pending step.
    _stepped: Stepped
    #: Its rewards for callbacks, which may write into them.
    _seen: Lazy
    #: The rewards of its streams, ``(N, K - 1)``; ``None``: there are none.
    _stream_rewards: th.Tensor | None

    def __init__(self, plan: RolloutPlan, env: VecEnv, position: Position, step: int):
        super().__init__(plan, env, position, step)
        self._to_env = plan.policy.distribution.tensors_to_env(plan.device)
        #: Of each step: which episodes have ended, which a time limit ended, which have their final observation in the
        #: buffer; their returns and lengths so far. Each has shape ``(N,)``.
        self._episodes: list[tuple[th.Tensor, ...]] = []
        #: Of each step: whether masks had other numbers than 0 and 1.
        self._other_masks: list[th.Tensor] = []
        #: What the simulator has logged, by name: numbers, and means of tensors.
        self._log: dict[str, list[th.Tensor]] = {}

    # --- step by step ----------------------------------------------------------------------------------------------

    def _use(self, env: VecEnv) -> None:
        position = self.position
        assert isinstance(env, TensorVecEnv), "set_env during a rollout: environments in tensors, and others"
        if position.obs is None:
            restart(position, env, CheckedEnvs(env, lambda: self._step))
        # Episodes are begun through SB3's interface, which is NumPy's.
        position.obs, position.starts = self._here(tree_map(th.as_tensor, (position.obs, position.starts)))
        self._simulator = env

    def _here(self, tensors: Tree, copy: bool = False) -> Tree:
        options: dict[str, Any] = {"copy": True, "memory_format": th.contiguous_format} if copy else {}
        return tree_map(lambda tensor: tensor.to(self._plan.device, **options), tensors)  # type: ignore[no-any-return]

    def _masks(self) -> th.Tensor | None:
        """The present action masks, booleans ``(N, M)``; ``None``: none, or in the observations."""
        source = self._plan.masks
        if source is None or source.key is not None:
            return None
        own = flat_masks(str(source), self._simulator.env.action_masks(), source.layout)
        given: th.Tensor = self._here(th.as_tensor(own))
        if given.dtype != th.bool:
            self._other_masks.append(_has_others(given))
        return given.to(th.bool, copy=True)  # a copy, since the simulator may write into its own

    def step(self) -> EnvStep[th.Tensor]:
        """Take a step with the policy's actions.

        :raises FloatingPointError: the policy has none, since an observation is not finite
        :raises ValueError: the masks have another shape than the choices
        """
        plan, position, masks = self._plan, self.position, self._masks()
        obs, carry = position.obs, self._next_carry(position.starts)
        starts = position.starts if plan.policy.remembers else None
        try:
            packed, position.carry = plan.act(obs, carry, starts, masks)
        except Exception:
            require_finite("observation", as_numpy(obs), self._step)
            raise
        chosen = PolicyOutput.unpacked(packed, plan.policy.distribution.action_dim)
        env_actions = self._to_env(chosen.actions)
        stepped = self._simulator.step_tensors(env_actions)
        # Copies, since the simulator may write into its own in the next step, which may be that of an evaluation.
        new_obs, rewards, final_obs = self._here((stepped.obs, stepped.rewards, stepped.final_obs), copy=True)
        new = {name: self._here(getattr(stepped, name)) for name in ("dones", "timeouts", "returns", "lengths")}
        stepped = stepped._replace(obs=new_obs, rewards=rewards, final_obs=final_obs, **new)
        for name, value in stepped.log.items():
            if isinstance(value, (int, float, th.Tensor)):
                mean = th.as_tensor(value, dtype=th.float32).mean()
                self._log.setdefault(name, []).append(to_device(mean, plan.device))
        self._step += 1
        streams = plan.policy.streams
        self._stream_rewards = None if streams is None else stream_tensors(streams, stepped.infos, rewards)
        self._stepped, self._seen = stepped, Lazy(lambda: as_numpy(rewards))
        # Episodes are reported at the end of the rollout, not in infos.
        taken = obs, position.starts, masks, obs, chosen, env_actions
        step: EnvStep[th.Tensor] = EnvStep(*taken, new_obs, rewards, stepped.dones, None, ())
        self.pending = step
        return step

    def locals(self) -> dict[str, Any]:
        simulator, stepped = self._simulator, self._stepped
        return super().locals() | {"rewards": self._seen, "infos": Lazy(lambda: simulator.infos(stepped))}

    def _shown(self, values: Any) -> Lazy:
        # Copied to the host on access.
        return Lazy(lambda: as_numpy(values))

    def store(self, env: VecEnv) -> None:
        step: EnvStep[th.Tensor] = self.pending
        position, stepped = self.position, self._stepped
        dones, timeouts, final_obs = stepped.dones, stepped.timeouts, stepped.final_obs
        known = th.full_like(dones, final_obs is not None)
        if position.obs is None or self._stream_rewards is not None:
            # Streams are computed from the observations after all steps.
            final_obs = stepped.obs if final_obs is None else where(dones, final_obs, stepped.obs)
        if position.obs is None:
            # Something else has used the environments: all episodes end here, as at a time limit.
            known, timeouts = known | ~dones, timeouts | ~dones
            self._use(env)
        else:
            position.obs, position.starts = step.new_obs, dones
        # Callbacks may have written into the rewards that they saw.
        seen = "value" in vars(self._seen)
        rewards = self._here(th.from_numpy(self._seen.value)) if seen else stepped.rewards
        chosen = (step.chosen.actions, rewards, step.starts, *step.chosen[1:], step.masks)
        self._plan.buffer.add(step.obs, *chosen, final_obs, self._stream_rewards)
        self._dones.append(dones)
        self._episodes.append((dones, timeouts, known, stepped.returns, stepped.lengths))
        self.n_steps += 1
        self.pending = None

    # --- at the end ------------------------------------------------------------------------------------------------

    def finish(self) -> tuple[list[dict[str, Any]], dict[str, float]]:
        """End the rollout: check its numbers; :meth:`estimate` may be called then.

        :raises FloatingPointError: an observation, a reward or an output of the policy was not finite
        :raises ValueError: a mask allowed nothing, or was not of zeros and ones
        """
        plan, position, buffer = self._plan, self.position, self._plan.buffer
        tables = (self._here(th.stack(column)) for column in zip(*self._episodes, strict=True))
        dones, timeouts, known, returns, lengths = tables
        streams = plan.policy.streams
        # Those whose final observation is used.
        ended = dones if streams is not None and streams.are_computed else timeouts
        logged = [th.stack(values).mean() for values in self._log.values()]
        facts = [
            self._suspicious(ended & known),
            th.stack([timeouts.sum(), (ended & ~known).sum()]),
            _last_episodes(dones, returns, lengths, plan.window),
            th.stack(logged) if logged else th.empty(0, device=plan.device),
        ]
        suspicious, (n_limited, n_lacking), episodes, means = (fact.numpy() for fact in read(facts))
        if suspicious.any():
            self._explain(ended & known)
        if n_lacking:
            warnings.warn(
                "the simulator does not return final observations of episodes, so the value of the observation before "
                "replaces that of the final one at a time limit, and streams are computed from the first observation "
                f"of the next episode: {self._simulator.env.remedy}",
                stacklevel=4,
            )
        limited = _entries(timeouts, int(n_limited))
        final_obs, own = (
            tree_map(lambda rows: rows[limited], buffer.stored(name)) for name in ("observations", "final_observations")
        )
        if own is not None:
            final_obs = where(known[limited], own, final_obs)
        self._last, self._at_limits = (position.obs, position.carry, position.starts), (limited, final_obs)
        logged_episodes = [self._simulator.episode(*numbers) for there, *numbers in episodes.T[::-1].tolist() if there]
        names = [name if "/" in name else f"env/{name}" for name in self._log]
        return [{"episode": episode} for episode in logged_episodes], dict(zip(names, means.tolist(), strict=True))

    def _suspicious(self, known: th.Tensor) -> th.Tensor:
        """Whether there may be something in the rollout that :meth:`_explain` finds, 0-d."""
        buffer, masks = self._plan.buffer, self._plan.masks
        # A sum is not finite where a part of it is not, and costs one look at each number.
        outputs = [buffer.stored(name) for name in ("rewards", "values", "log_probs")]
        sums = [part.sum() for part in [*outputs, *_floats((buffer.stored("observations"), self.position.obs))]]
        final_obs = _floats(buffer.stored("final_observations"))
        sums += [part.reshape(*known.shape, -1).sum(dim=2).where(known, 0.0).sum() for part in final_obs]
        not_all_finite = ~th.isfinite(th.stack(sums)).all()
        if masks is None:
            return not_all_finite
        forbids_all = nothing_allowed(_stored_masks(buffer, masks), masks.layout).any()
        return not_all_finite | forbids_all | self._has_other_masks(masks)

    def _has_other_masks(self, source: MaskSource) -> th.Tensor:
        """Whether masks of the rollout have other numbers than 0 and 1, 0-d."""
        if source.key is not None:
            return _has_others(self._plan.buffer.stored("observations")[source.key])
        return th.stack(self._other_masks).any() if self._other_masks else th.tensor(False, device=self._plan.device)

    def _explain(self, known: th.Tensor) -> None:
        """Raise an error for what is wrong with the steps, if anything is; ``known``: which have final observations."""
        buffer, masks = self._plan.buffer, self._plan.masks
        first = self._step - self.n_steps
        outputs = buffer.stored("values") + buffer.stored("log_probs")
        for row in range(self.n_steps):
            obs = tree_map(itemgetter(row), buffer.stored("observations"))
            require_finite("observation", as_numpy(obs), first + row)
            if not outputs[row].isfinite().all():
                raise not_finite(self._plan.policy, first + row)
            require_finite("reward", as_numpy(buffer.stored("rewards")[row]), first + row + 1)
            for i in np.flatnonzero(as_numpy(known[row])).tolist():
                final_obs = tree_map(itemgetter((row, i)), buffer.stored("final_observations"))
                require_finite("final observation", as_numpy(final_obs), first + row + 1, env=i)
        require_finite("observation", as_numpy(self.position.obs), self._step)
        if masks is not None:
            if self._has_other_masks(masks):
                raise ValueError(f"{masks}: a mask must be of zeros and ones, for choices among {masks.layout}")
            stored = _stored_masks(buffer, masks)
            for row, i in nothing_allowed(stored, masks.layout).nonzero().tolist():
                raise ValueError(masks.forbids_all(i, first + row, as_numpy(stored[row, i])))


def _last_episodes(dones: th.Tensor, returns: th.Tensor, lengths: th.Tensor, window: int) -> th.Tensor:
    """The last episodes of tables ``(T, N)``, newest first, ``(3, K)``: whether it exists, its return and length."""
    where = th.arange(dones.numel(), device=dones.device).masked_fill(~dones.flatten(), -1)
    last = where.topk(min(window, len(where))).values
    entries = [table.flatten()[last.clamp(min=0)] for table in (returns, lengths)]
    return th.stack([entry.to(returns.dtype) for entry in (last >= 0, *entries)])


def _entries(mask: th.Tensor, n: int) -> RowsAndColumns:
    """Rows and columns of ``n`` true entries of ``(T, N)``, in order; ``nonzero`` would ask the device for ``n``."""
    indices = mask.flatten().float().topk(n, sorted=False).indices.sort().values
    return indices // mask.shape[1], indices % mask.shape[1]


def _floats(tensors: Any) -> list[th.Tensor]:
    return [leaf for leaf in tree_leaves(tensors) if leaf.is_floating_point()]


def _has_others(masks: th.Tensor) -> th.Tensor:
    """Whether masks have other numbers than 0 and 1, such as those that are added to logits, 0-d."""
    return (masks != masks.bool().to(masks.dtype)).any()


def _stored_masks(buffer: RolloutBuffer, source: MaskSource) -> th.Tensor:
    """The masks of a rollout, booleans ``(T, N, M)``."""
    masks = buffer.stored("masks") if source.key is None else buffer.stored("observations")[source.key]
    return masks.flatten(2).bool()  # type: ignore[no-any-return]
