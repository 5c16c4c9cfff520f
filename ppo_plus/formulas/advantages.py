"""Advantages: generalized advantage estimation (GAE), the bootstrap at time limits, normalization.

Shapes are time-major: ``(T, N)`` for ``T`` steps of ``N`` environments.

Source: Schulman et al. 2016, *High-Dimensional Continuous Control Using Generalized Advantage Estimation*
(arXiv:1506.02438).
"""

import torch as th


def gae(
    rewards: th.Tensor,
    values: th.Tensor,
    last_values: th.Tensor,
    episode_starts: th.Tensor,
    last_dones: th.Tensor,
    gamma: float,
    gae_lambda: float,
) -> th.Tensor:
    r"""GAE(λ): :math:`A_t = \delta_t + \gamma\lambda (1 - d_{t+1}) A_{t+1}`,
    with :math:`\delta_t = r_t + \gamma (1 - d_{t+1}) V_{t+1} - V_t`.

    The recursion is linear, so it is solved by doubling: after round ``k`` every :math:`A_t` covers the next
    :math:`2^k` terms. That takes ``log2(T)`` tensor operations instead of ``T`` (Hillis and Steele 1986).

    :param rewards: :math:`r_t`, shape ``(T, N)``; where an episode ended by a time limit, with the discounted value
        of its final observation already added (:func:`bootstrap_timeouts`)
    :param values: :math:`V_t`, shape ``(T, N)``
    :param last_values: :math:`V_T`, shape ``(N,)``
    :param episode_starts: :math:`d_t`, whether the observation at ``t`` begins an episode, shape ``(T, N)``
    :param last_dones: :math:`d_T`, whether the last step ended an episode, shape ``(N,)``
    :param gamma: discount :math:`\gamma \in [0, 1]`
    :param gae_lambda: :math:`\lambda \in [0, 1]`: 1 gives Monte-Carlo returns minus the value, 0 one-step TD errors
    :return: :math:`A_t`, shape ``(T, N)``; the TD(λ) returns are ``advantages + values``
    """
    next_values = th.cat([values[1:], last_values[None]])
    continues = 1.0 - th.cat([episode_starts[1:], last_dones[None]]).to(values.dtype)
    advantages = rewards + gamma * next_values * continues - values
    decay = gamma * gae_lambda * continues
    span = 1
    while span < len(advantages):
        # The right-hand sides are new tensors: no row is read after it was overwritten.
        advantages[:-span] += decay[:-span] * advantages[span:]
        decay[:-span] = decay[:-span] * decay[span:]
        span *= 2
    return advantages


def bootstrap_timeouts(
    rewards: th.Tensor, steps: th.Tensor, envs: th.Tensor, final_values: th.Tensor, gamma: float
) -> th.Tensor:
    r"""Add :math:`\gamma V(s_{final})` to the rewards of transitions that a time limit cut off.

    An episode that was truncated, not terminated, would have continued: the value of its final observation estimates
    the rest of its return (Pardo et al. 2018, arXiv:1712.00378).

    :param rewards: shape ``(T, N)``; not changed
    :param steps: row of each cut transition, integers of shape ``(K,)``
    :param envs: column of each cut transition, integers of shape ``(K,)``
    :param final_values: :math:`V(s_{final})`, shape ``(K,)``
    :param gamma: discount in ``[0, 1]``
    :return: the rewards to use in :func:`gae`, shape ``(T, N)``
    """
    return rewards.index_put((steps, envs), gamma * final_values, accumulate=True)


def normalize(advantages: th.Tensor) -> th.Tensor:
    r"""Zero mean and unit standard deviation: :math:`(A - \bar A) / (\sigma_A + 10^{-8})`.

    A single advantage has no standard deviation and is returned unchanged.

    :param advantages: any shape
    :return: same shape
    """
    if advantages.numel() < 2:
        return advantages
    std, mean = th.std_mean(advantages)
    return (advantages - mean) / (std + 1e-8)
