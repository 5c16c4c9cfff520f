"""Collecting from environments in tensors: nothing leaves the device until a rollout ends, and then once.

What the host needs to know of a rollout (whether its numbers are finite, which episodes have ended, how many time
limits there were, what to log, the statistics of a ``VecNormalize``) is computed on the device and read in one copy.
"""

import warnings
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any

import numpy as np
import torch as th
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper, VecNormalize

from ppo_plus.envs.normalization import VecNormalizeTransitions
from ppo_plus.envs.tensors.env import as_numpy
from ppo_plus.envs.tensors.normalize import Normalizing
from ppo_plus.envs.tensors.vec_env import Stepped, TensorVecEnv
from ppo_plus.policy.distributions import widest
from ppo_plus.policy.masking import NESTED, MaskSource, choices_of, flat_masks, warn_of_order
from ppo_plus.policy.policies import Carry, Memory, Step, not_finite
from ppo_plus.require import require_finite
from ppo_plus.rollout.buffer import RolloutBuffer
from ppo_plus.rollout.collector import Collector, EnvStep, Report, RolloutPlan
from ppo_plus.rollout.lazy import Lazy
from ppo_plus.trees import tree_leaves, tree_map


def in_tensors(env: VecEnv | None) -> bool:
    """Whether training takes these environments in tensors: themselves, or in a ``VecNormalize``.

    Any other wrapper of SB3's works in NumPy, and so does training then.
    """
    return isinstance(env, TensorVecEnv) or (
        type(env) in (VecNormalize, VecNormalizeTransitions) and isinstance(env.venv, TensorVecEnv)  # type: ignore[union-attr]
    )


def warn_of_numpy(env: VecEnv) -> None:
    """Warn where a wrapper keeps environments in tensors from being taken so."""
    if isinstance(env, VecEnvWrapper) and isinstance(env.unwrapped, TensorVecEnv) and not in_tensors(env):
        warnings.warn(
            f"{type(env).__name__} works in NumPy, so environments in tensors are stepped through the host, which is "
            "slow: leave it out, or wrap the simulator (VecNormalize, directly around them, is done in tensors)",
            stacklevel=4,
        )


def collector_for(env: VecEnv, present: Collector, device: th.device) -> Collector:
    """The collector for environments: the present one where it is of their kind."""
    kind = TensorCollector if in_tensors(env) else Collector
    return present if type(present) is kind else kind(device)


class TensorCollector(Collector):
    """A :class:`~ppo_plus.rollout.collector.Collector` whose ``obs`` and ``starts`` are tensors on its device."""

    starts: Any

    def _begin_rollout(self) -> None:
        super()._begin_rollout()
        #: The environments without the ``VecNormalize`` around them.
        self._simulator: Any = None
        self._stepped: Stepped
        #: The step's rewards for callbacks.
        self._rewards: Lazy
        self._normalizing: Normalizing | None = None
        self._to_env: Any = None
        #: What each step returned, without what is in the buffer.
        self._steps: list[Stepped] = []
        #: For each step, which environments have their final observation in the buffer, booleans ``(N,)``.
        self._known: list[th.Tensor] = []
        self._knows_any = False
        #: The memory after each step's action; empty without memory.
        self._memories: list[Memory] = []
        self._log = _Log()

    # --- step by step ----------------------------------------------------------------------------------------------

    def start(self, plan: RolloutPlan, env: VecEnv, step: int) -> None:
        super().start(plan, env, step)
        self._to_env = plan.policy.distribution.tensors_to_env(self.device)
        self._as_tensors()

    def _use(self, env: VecEnv) -> None:
        super()._use(env)
        self._simulator = env.unwrapped
        self._normalizing = Normalizing(env, self._simulator.device) if isinstance(env, VecNormalize) else None

    def flush(self) -> None:
        if self._normalizing is not None:
            self._normalizing.write(_read(self._normalizing.tensors()))

    def interrupt(self) -> None:
        self.flush()
        super().interrupt()

    def restart(self, env: VecEnv) -> None:
        super().restart(env)
        if self._normalizing is not None:
            self._normalizing.read()
        self._as_tensors()

    def _as_tensors(self) -> None:
        """Episodes are begun through SB3's interface, which is NumPy's."""
        self.obs = self._here(tree_map(th.as_tensor, self.obs))
        self.starts = self._here(th.as_tensor(self.starts))

    def _here(self, tensors: Any) -> Any:
        return tree_map(lambda tensor: tensor.to(self.device), tensors)

    def _masks(self) -> th.Tensor | None:
        """The present action masks, booleans ``(N, M)``; ``None``: none, or in the observations.

        :raises ValueError: they have another shape
        """
        source = self._plan.masks
        if source is None or source.key is not None:
            return None
        given = self._simulator.masks()
        if not isinstance(given, NESTED):
            warn_of_order(source.layout)
        return self._here(flat_masks(str(source), given, source.layout)).bool()  # type: ignore[no-any-return]

    def step(self) -> EnvStep:
        """Take a step with the policy's actions.

        :raises FloatingPointError: the policy has none, since an observation is not finite
        :raises ValueError: the masks have another shape than the choices
        """
        policy, starts, masks = self._plan.policy, self.starts, self._masks()
        # A copy, since the simulator may write into its own in the step.
        obs = tree_map(lambda tensor: tensor.clone(memory_format=th.contiguous_format), self.obs)
        carry = self._carry_now()
        try:
            packed, self.carry = self._plan.act(obs, carry, starts if policy.remembers else None, masks)
        except Exception:
            require_finite("observation", as_numpy(obs), self._step)
            raise
        self._memory = self.carry.memory
        chosen = Step.unpacked(packed, policy.distribution.action_dim)
        env_actions = self._to_env(chosen.actions)
        stepped: Stepped = self._simulator.step_tensors(env_actions)
        self._log.add(stepped.log)
        if self._normalizing is not None:
            stepped = self._normalizing(stepped)
        self._step += 1
        self._incoming, self._stepped = stepped.obs, stepped
        self._rewards = Lazy(lambda: as_numpy(stepped.rewards))
        new_obs, rewards, dones = stepped.obs, stepped.rewards, stepped.dones
        return EnvStep(obs, starts, masks, obs, chosen, env_actions, new_obs, rewards, dones, dones, ())

    def renew_noise(self, policy: Any, sde_sample_freq: int | str) -> Carry:
        if self.carry is None or not isinstance(sde_sample_freq, str):
            return super().renew_noise(policy, sde_sample_freq)
        starts = self.starts
        if self.device.type == "cpu":
            starting = starts.nonzero().squeeze(1)
            if len(starting):
                self.carry = policy.renew_noise(self.carry, starting)
        elif self.carry.noise:
            # To ask an accelerator which have begun an episode takes longer than to draw the noise of all.
            fresh = policy.renew_noise(self.carry, np.arange(len(starts))).noise
            self.carry = self.carry._replace(noise=_where(starts, fresh, self.carry.noise))
        assert self.carry is not None
        return self.carry

    def locals(self, step: EnvStep) -> dict[str, Any]:
        """What callbacks find of a step in their ``locals``, under SB3's names; copied to the host on access."""
        stepped, simulator = self._stepped, self._simulator
        return {
            "obs_tensor": step.obs_tensor,
            "action_masks": step.masks,
            "values": step.chosen.values[:, None],
            "log_probs": step.chosen.log_probs,
            "actions": Lazy(lambda: as_numpy(step.chosen.actions)),
            "clipped_actions": Lazy(lambda: as_numpy(step.env_actions)),
            "new_obs": Lazy(lambda: as_numpy(step.new_obs)),
            "rewards": self._rewards,
            "dones": Lazy(lambda: as_numpy(step.dones)),
            "infos": Lazy(lambda: simulator.infos(stepped)),
        }

    def store(self, step: EnvStep, env: VecEnv) -> None:
        stepped = self._stepped
        dones, timeouts, final_obs = stepped.dones, stepped.timeouts, stepped.final_obs
        known = th.full_like(dones, final_obs is not None)
        if self.obs is None:
            # Something else has used the environments: all episodes end here, as at a time limit.
            incoming = self._incoming
            final_obs = incoming if final_obs is None else _where(dones, final_obs, incoming)
            known, timeouts = known | ~dones, timeouts | ~dones
            self.restart(env)
        else:
            self.obs, self.starts = self._here(step.new_obs), self._here(dones)
        given: dict[str, Any] = {"masks": step.masks, "final_observations": final_obs}
        actions, values, log_probs, params = step.chosen
        self._plan.buffer.put(
            observations=step.obs,
            actions=actions.float(),
            # Callbacks may have written into those that they saw.
            rewards=self._here(th.from_numpy(self._rewards()) if self._rewards.is_made else step.rewards),
            episode_starts=step.starts,
            values=values,
            log_probs=log_probs,
            params=params,
            **{name: self._here(rows) for name, rows in given.items() if rows is not None},
        )
        self._steps.append(stepped._replace(obs=None, final_obs=None, timeouts=timeouts))
        self._known.append(known)
        self._knows_any = self._knows_any or final_obs is not None
        if self._memory:
            self._memories.append(self._memory)
        self.n_steps += 1

    # --- at the end ------------------------------------------------------------------------------------------------

    def finish(self) -> Report:
        """End a rollout: check its numbers, bootstrap, and estimate advantages.

        :raises FloatingPointError: an observation, a reward or an output of the policy was not finite
        :raises ValueError: a mask allowed nothing
        """
        buffer, masks = self._plan.buffer, self._plan.masks
        dones, timeouts = self._table("dones"), self._table("timeouts")
        known = timeouts & self._here(th.stack(self._known))
        unknown = timeouts & ~known
        suspicious, (n_known, n_unknown), episodes, log, *statistics = _read(
            [
                self._suspicious(buffer, known, masks),
                th.stack([known.sum(), unknown.sum()]),
                _last_episodes(dones, self._table("returns"), self._table("lengths"), self._plan.window),
                self._log.means(self.device),
                *([] if self._normalizing is None else self._here(self._normalizing.tensors())),
            ]
        )
        if suspicious.any():
            self._explain(buffer, known, masks, statistics)
        if self._normalizing is not None:
            self._normalizing.write(statistics)
            self._normalizing = None
        if n_unknown:
            self._warn_of_unknown()
        self._known_at, self._unknown_at = _places(known, int(n_known)), _places(unknown, int(n_unknown))
        # Copies: the simulator may write into its own before advantages are recomputed.
        self._last = tree_map(th.clone, (self.obs, self._memory, self.starts))
        self.estimate(buffer)
        seconds = self._simulator.seconds()
        infos = [
            {"episode": {"r": round(r, 6), "l": int(length), "t": seconds}}
            for there, r, length in episodes.T[::-1].tolist()
            if there
        ]
        return Report(infos, self._log.named(log))

    def estimate(self, buffer: RolloutBuffer) -> None:
        policy = self._plan.policy
        obs, memory, starts = self._last
        finals = buffer.stored("values")[self._unknown_at]
        with th.no_grad():
            values = policy.predict_values(obs, Carry(memory), starts)
            if len(self._known_at[0]):
                final_obs = tree_map(lambda stored: stored[self._known_at], buffer.stored("final_observations"))
                memory = tree_map(lambda *parts: th.stack(parts)[self._known_at], *(self._memories or [{}]))
                finals = th.cat([policy.predict_values(final_obs, Carry(memory)).reshape(-1), finals])
        if len(finals):
            rows, columns = map(th.cat, zip(self._known_at, self._unknown_at, strict=True))
            buffer.bootstrap_timeouts(rows, columns, self._gain(finals))
        buffer.compute_returns_and_advantage(last_values=values, dones=starts)

    def _table(self, name: str) -> th.Tensor:
        """An entry of all steps, shape ``(T, N)``."""
        table: th.Tensor = self._here(th.stack([getattr(step, name) for step in self._steps]))
        return table

    def _warn_of_unknown(self) -> None:
        if not self._has_warned:
            self._has_warned = True
            warnings.warn(
                "the simulator does not return final observations of episodes, so the value of the observation before "
                f"stands for what a time limit has cut off: {self._simulator.env.remedy}",
                stacklevel=5,
            )

    def _suspicious(self, buffer: Any, known: th.Tensor, masks: MaskSource | None) -> th.Tensor:
        """Whether there may be something in the rollout that :meth:`_explain` finds, 0-d."""
        # A sum is not finite where a part of it is not, and costs one look at each number.
        outputs = [buffer.stored(name) for name in ("rewards", "values", "log_probs")]
        numbers = [*outputs, *_floats((buffer.stored("observations"), self.obs))]
        sums = [each.sum() for each in numbers]
        if self._knows_any:
            finals = _floats(buffer.stored("final_observations"))
            sums += [each.flatten(2).sum(dim=2).where(known, 0.0).sum() for each in finals]
        if self._normalizing is not None:
            sums.append(self._here(self._normalizing.watch).sum())
        found = ~th.isfinite(th.stack(sums)).all()
        if masks is None:
            return found
        return found | _nothing_allowed(_stored_masks(buffer, masks), choices_of(masks.layout)).any()

    def _explain(self, buffer: Any, known: th.Tensor, masks: MaskSource | None, statistics: list[np.ndarray]) -> None:
        """:raises FloatingPointError, ValueError: what is wrong with the rollout; nothing if all is well"""
        self._checked.restore()
        first = self._step - self.n_steps
        outputs = buffer.stored("values") + buffer.stored("log_probs")
        for row in outputs.isfinite().all(dim=1).logical_not().nonzero()[:1].flatten().tolist():
            obs = tree_map(itemgetter(row), buffer.stored("observations"))
            if all(leaf.isfinite().all() for leaf in _floats(obs)):
                raise not_finite(self._plan.policy, obs, first + row)
        if statistics and not np.isfinite(statistics[0]).all():
            # All observations are normalized by what one of them has spoilt.
            require_finite("sum of observations and rewards", statistics[0], self._step)
        for row in range(self.n_steps):
            require_finite("observation", _row(buffer.stored("observations"), row), first + row)
            require_finite("reward", _row(buffer.stored("rewards"), row), first + row + 1)
            for i in np.flatnonzero(as_numpy(known[row])).tolist():
                final_obs = _row(buffer.stored("final_observations"), (row, i))
                require_finite("final observation", final_obs, first + row + 1, env=i)
        require_finite("observation", as_numpy(self.obs), self._step)
        if masks is not None:
            given = _stored_masks(buffer, masks)
            for row, i in _nothing_allowed(given, choices_of(masks.layout)).nonzero().tolist():
                raise ValueError(masks.forbids_all(i, first + row, as_numpy(given[row, i])))


class _Log:
    """What simulators log, averaged over the steps in which they log it."""

    def __init__(self) -> None:
        #: Rows of tensors, by the names of their columns; and numbers.
        self._rows: dict[tuple[str, ...], list[th.Tensor]] = {}
        self._numbers: dict[str, list[float]] = {}

    def add(self, log: Mapping[str, Any]) -> None:
        """What was logged in a step: numbers, and tensors of which the mean counts."""
        tensors = {name: value for name, value in log.items() if isinstance(value, th.Tensor)}
        for name, value in log.items():
            if isinstance(value, (int, float)):
                self._numbers.setdefault(name, []).append(value)
        if tensors:
            row = th.stack([value.float().mean() for value in tensors.values()])
            self._rows.setdefault(tuple(tensors), []).append(row)

    def means(self, device: th.device) -> th.Tensor:
        """The means of the tensors, for :meth:`named`."""
        each = [th.stack(rows).mean(dim=0).to(device) for rows in self._rows.values()]
        return th.cat(each) if each else th.empty(0, device=device)

    def named(self, means: np.ndarray) -> dict[str, float]:
        """All means by the name under which they are logged."""
        names = [name for names in self._rows for name in names]
        found = {name: sum(values) / len(values) for name, values in self._numbers.items()}
        found |= dict(zip(names, means.tolist(), strict=True))
        return {name if "/" in name else f"env/{name}": value for name, value in found.items()}


def _read(tensors: list[th.Tensor]) -> list[np.ndarray]:
    """Tensors from a device, in one copy."""
    parts = [tensor.reshape(-1).to(widest(tensor.device)) for tensor in tensors]
    numbers = th.cat(parts).cpu().numpy()
    sizes = np.cumsum([len(part) for part in parts])[:-1]
    return [part.reshape(tensor.shape) for part, tensor in zip(np.split(numbers, sizes), tensors, strict=True)]


def _last_episodes(dones: th.Tensor, returns: th.Tensor, lengths: th.Tensor, window: int) -> th.Tensor:
    """The last episodes of tables ``(T, N)``, newest first, ``(3, K)``: whether there is one, its return and length."""
    where = th.arange(dones.numel(), device=dones.device).masked_fill(~dones.flatten(), -1)
    last = where.topk(min(window, len(where))).values
    entries = [each.flatten()[last.clamp(min=0)] for each in (returns, lengths)]
    return th.stack([each.to(returns.dtype) for each in (last >= 0, *entries)])


def _places(mask: th.Tensor, n: int) -> tuple[th.Tensor, th.Tensor]:
    """Rows and columns of ``n`` true entries of ``(T, N)``, in order; ``nonzero`` would ask the device for ``n``."""
    indices = mask.flatten().float().topk(n, sorted=False).indices.sort().values
    return indices // mask.shape[1], indices % mask.shape[1]


def _where(mask: th.Tensor, one: Any, other: Any) -> Any:
    """Rows of one nesting of tensors where a mask ``(N,)`` is true, and of another one elsewhere."""

    def choose(a: th.Tensor, b: th.Tensor) -> th.Tensor:
        return a.where(mask.reshape(-1, *[1] * (a.ndim - 1)), b)

    return tree_map(choose, one, other)


def _row(tensors: Any, index: Any) -> Any:
    """An entry of each of a nesting of tensors, as NumPy arrays."""
    return as_numpy(tree_map(lambda tensor: tensor[index], tensors))


def _floats(tensors: Any) -> list[th.Tensor]:
    return [leaf for leaf in tree_leaves(tensors) if leaf.is_floating_point()]


def _stored_masks(buffer: Any, source: MaskSource) -> th.Tensor:
    """The masks of a rollout, booleans ``(T, N, M)``."""
    found = buffer.stored("masks") if source.key is None else buffer.stored("observations")[source.key]
    return found.flatten(2).bool()  # type: ignore[no-any-return]


def _nothing_allowed(masks: th.Tensor, choices: Sequence[int]) -> th.Tensor:
    """In which masks ``(..., M)`` some choice has no alternative left."""
    return ~th.stack([part.any(dim=-1) for part in th.split(masks, list(choices), dim=-1)]).all(dim=0)
