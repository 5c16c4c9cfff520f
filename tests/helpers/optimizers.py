"""A small network, optimizers of all kinds, and steps of them, shared by tests."""

import torch as th
from stable_baselines3.common.sb2_compat.rmsprop_tf_like import RMSpropTFLike
from torch import nn, optim

from ppo_plus.update.minibatch import ELEMENTWISE, trainable
from ppo_plus.update.update import coefficients_of

#: Beside the plain ones: state that is only there with certain options.
OPTIONS = {
    **{cls.__name__: (cls, {}) for cls in ELEMENTWISE},
    "SGD_momentum": (optim.SGD, {"momentum": 0.9}),
    "Adam_amsgrad": (optim.Adam, {"amsgrad": True}),
    "Adam_fused": (optim.Adam, {"fused": True}),
    "Adam_foreach": (optim.Adam, {"foreach": True}),
    "Adam_betas_decay": (optim.Adam, {"betas": (0.5, 0.9), "weight_decay": 0.1}),
    "SGD_nesterov": (optim.SGD, {"momentum": 0.9, "nesterov": True}),
    "SGD_maximize": (optim.SGD, {"maximize": True}),
    "RMSprop_centered": (optim.RMSprop, {"centered": True, "momentum": 0.9}),
    "RMSpropTFLike_centered": (RMSpropTFLike, {"centered": True, "momentum": 0.9}),
    "Adagrad_initial": (optim.Adagrad, {"initial_accumulator_value": 0.1, "lr_decay": 0.1}),
}


def network(seed=0):
    th.manual_seed(seed)
    # A scalar, a vector, a matrix and a tensor of more dimensions.
    module = nn.Module()
    for number, shape in enumerate([(), (3,), (2, 3), (2, 1, 3)]):
        module.register_parameter(f"p{number}", nn.Parameter(th.randn(shape)))
    return module


def optimizer_of(name, module):
    cls, options = OPTIONS[name]
    return cls(module.parameters(), lr=0.01, **options)


def gradients(module, seed):
    generator = th.Generator().manual_seed(seed)
    loss = sum((p * th.randn(p.shape, generator=generator)).sum() + p.square().sum() for p in module.parameters())
    params = [p for p in module.parameters() if p.requires_grad]
    return params, th.autograd.grad(loss, params)


def steps(optimizer, module, seeds):
    """Steps of an optimizer, or of the one flat with packed weights."""
    for seed in seeds:
        params, grads = gradients(module, seed)
        targets = trainable(optimizer)
        if len(targets) < len(params):
            params, grads = targets, [th.cat([grad.reshape(-1) for grad in grads])]
        for p, grad in zip(params, grads, strict=True):
            p.grad = grad
        optimizer.step()


def flat_state(optimizer):
    """The state as numbers, for comparison."""
    states = optimizer.state_dict()["state"]
    return {
        (index, name): th.as_tensor(value, dtype=th.float64)
        for index, state in states.items()
        for name, value in state.items()
        if value is not None
    }


def coefficients_at(model, progress=1.0):
    """What an update of a model is given at some point of training."""
    return coefficients_of(model.settings.at(progress))
