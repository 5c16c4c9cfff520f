"""A file may ask for what models are built from, by public names, and for nothing else; and for no more numbers than
its weights explain."""

import functools
import json
import sys
import types
from functools import partial

import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3 import PPO
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.torch_layers import NatureCNN
from torch import nn

import ppo_plus
from ppo_plus import PPO_Plus, Refused, register
from ppo_plus.formulas.schedules import Linear
from ppo_plus.saving.format import names
from ppo_plus.saving.format.names import find, find_class_of_objects, name_of, require_activation, require_attributes
from ppo_plus.saving.format.values import restore


@pytest.fixture(autouse=True)
def nothing_registered(monkeypatch):
    monkeypatch.setattr(names, "_registered", {})


def my_schedule(progress):
    return progress


class Mine:
    pass


NAMES = {
    "gymnasium.spaces:Box": spaces.Box,
    "torch.nn:Tanh": th.nn.Tanh,
    "torch.optim:Adam": th.optim.Adam,
    "ppo_plus:RolloutBuffer": ppo_plus.RolloutBuffer,
    "stable_baselines3.common.buffers:RolloutBuffer": RolloutBuffer,
    "stable_baselines3.common.policies:ActorCriticPolicy": ActorCriticPolicy,
    "stable_baselines3.common.torch_layers:NatureCNN": NatureCNN,
}


@pytest.mark.parametrize("name", NAMES)
def test_what_models_are_built_from_is_found_by_a_public_name(name):
    assert find(name) is NAMES[name] and name_of(NAMES[name]) == name


def test_objects_are_of_plain_and_registered_classes():
    assert find_class_of_objects("ppo_plus:Linear") is Linear
    for name in ("torch.optim:Adam", f"{__name__}:my_schedule", f"{__name__}:Mine"):
        with pytest.raises(Refused, match=r"ppo_plus\.register"):
            find_class_of_objects(name)
    assert register(my_schedule, Mine) is my_schedule
    assert find(f"{__name__}:my_schedule") is my_schedule and find_class_of_objects(f"{__name__}:Mine") is Mine
    with pytest.raises(Refused):
        find_class_of_objects(f"{__name__}:my_schedule")


def test_only_what_has_a_name_is_registered():
    for bad in (3, lambda progress: 1.0, functools.partial(my_schedule)):
        with pytest.raises(TypeError, match="must be a class or a function"):
            register(bad)


@pytest.mark.parametrize("name", ["learn", "compiled", "__class__", "a.b", ""])
def test_a_file_sets_no_methods_and_no_properties(name):
    require_attributes(ppo_plus.PPO_Plus, ["gamma", "mine"])
    with pytest.raises(Refused, match=f"it sets '{name}'"):
        require_attributes(ppo_plus.PPO_Plus, ["gamma", name])


HARM = [
    "os:system",
    "builtins:eval",
    "functools:partial",
    "torch.hub:load",
    "torch.nn.modules.module:torch.hub.load",
    "torch.nn:functional",
    "torch.nn:DataParallel",
    "torch.nn.modules.activation:Tanh",
    "torch.optim.optimizer:register_optimizer_step_pre_hook",
    "torch.optim.lr_scheduler:LambdaLR",
    "numpy:load",
    "ppo_plus:PPO_Plus",
    "ppo_plus:register",
    "ppo_plus.formulas.exploration:WhiteNoise",
    "ppo_plus.zoo.installation:import_class",
    "stable_baselines3.common.policies:ActorCriticPolicy.load",
    # Of a kind that files may ask for, but not by the name of a module that has only imported it.
    "stable_baselines3.common.policies:NatureCNN",
    "stable_baselines3.common.save_util:load_from_pkl",
    "stable_baselines3.common.vec_env.vec_normalize:VecNormalize",
    "stable_baselines3.common.buffers:ReplayBuffer",
    "gymnasium.spaces..box:Box",
    "sb3_contrib.common.../x:y",
    "",
]


@pytest.mark.parametrize("name", HARM)
def test_no_name_is_a_way_to_what_could_do_harm(name):
    assert ppo_plus.PPO_Plus  # what loads a file has imported it
    before = set(sys.modules)
    for description in ({"!name": name}, {f"!{name}": {}}, {"!partial": [{"!name": name}, ["echo"], {}]}):
        with pytest.raises(Refused):
            restore(description, {})
    loaded = {each.split(".")[0] for each in set(sys.modules) - before}
    assert loaded <= {"gymnasium", "ppo_plus", "sb3_contrib", "stable_baselines3", "torch"}


def test_what_is_not_on_the_list_is_not_imported(tmp_path, monkeypatch):
    (tmp_path / "evil.py").write_text("raise SystemExit('ran')")
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("evil:f", "evil", "torch.nn.modules.evil:f", "evil.torch.nn.modules:f"):
        with pytest.raises(Refused):
            restore({"!name": name}, {})
    assert "evil" not in sys.modules


# --- classes of the user's program -----------------------------------------------------------------------------------


class Network(th.nn.Module):
    class Inner(th.nn.Module):
        pass


Alias = Network
network = Network()


class Trap:
    """A module's attributes are not looked up, but what it contains is."""

    def __getattr__(self, name):
        raise AssertionError(f"asked for {name}")


def test_a_class_of_an_imported_module_is_found():
    assert find(f"{__name__}:Network") is Network
    with pytest.raises(Refused):
        find(f"{__name__}:Mine")


@pytest.mark.parametrize("name", ["Trap", "Alias", "network", "Network.Inner", "find", "th", "th.nn", "__dict__", ""])
def test_nothing_else_of_a_module_is_found(name):
    for module in (__name__, "__main__"):
        with pytest.raises(Refused):
            find(f"{module}:{name}")
    # An object of a class that is found has to be registered: it would be made without its constructor.
    with pytest.raises(Refused):
        find_class_of_objects(f"{__name__}:Network")


def module(monkeypatch, name, file, **contents):
    made = types.ModuleType(name)
    made.__file__ = file
    vars(made).update(contents)
    monkeypatch.setitem(sys.modules, name, made)
    return made


@pytest.mark.parametrize(
    "place", ["lib/python3/site-packages/nets.py", "lib/dist-packages/nets/__init__.py", json.__file__]
)
def test_classes_of_libraries_have_to_be_registered(monkeypatch, place):
    theirs = type("OfALibrary", (th.nn.Module,), {"__module__": "nets"})
    module(monkeypatch, "nets", str(place), OfALibrary=theirs)
    # Nor by the name of a module that imports it.
    module(monkeypatch, "mine", "/home/me/mine.py", OfALibrary=theirs)
    for name in ("nets:OfALibrary", "mine:OfALibrary", "__main__:OfALibrary"):
        with pytest.raises(Refused, match="register"):
            find(name)
    register(theirs)
    assert find("nets:OfALibrary") is find("__main__:OfALibrary") is theirs


def test_a_class_of_main_is_found_where_it_is_now(monkeypatch):
    classes = [type("Moved", (th.nn.Module,), {"__module__": name}) for name in ("one", "two")]
    module(monkeypatch, "one", "/home/me/one.py", Moved=classes[0])
    assert find("__main__:Moved") is find("__mp_main__:Moved") is classes[0]
    module(monkeypatch, "two", "/home/me/two.py", Moved=classes[1])
    with pytest.raises(Refused, match="may be one:Moved or two:Moved"):
        find("__main__:Moved")
    register(classes[1])
    assert find("__main__:Moved") is classes[1]
    # A name of another module is its own.
    with pytest.raises(Refused):
        find("three:Moved")


def test_looking_for_a_class_runs_nothing(monkeypatch):
    monkeypatch.setitem(sys.modules, "trap", Trap())
    lazy = module(monkeypatch, "lazy", "/home/me/lazy.py", __getattr__=lambda name: pytest.fail(name))
    before = set(sys.modules)
    for name in ("trap:Network2", "lazy:Network2", "__main__:Network2", "never_imported:Network2"):
        with pytest.raises(Refused):
            find(name)
    assert set(sys.modules) == before and lazy


class Squares(nn.Module):
    def forward(self, x):
        return x**2


@pytest.mark.parametrize(
    "build",
    [
        lambda: nn.BatchNorm1d(600_000_000, affine=False),
        lambda: nn.Transformer(num_encoder_layers=150),
        lambda: nn.LSTM(1000, 1000, num_layers=10**9),
        lambda: th.zeros(1).expand(10**10).clone(),
        lambda: th.ones(100_000, 1) @ th.ones(1, 100_000),
        lambda: [nn.Parameter(th.empty(1)) for _ in range(10**9)],
    ],
)
def test_nothing_larger_than_its_weights_is_built(build, monkeypatch):
    monkeypatch.setattr(names, "MOST_NUMBERS", 2**18)
    with pytest.raises(MemoryError, match="larger than its weights"), names.Bounded({"a": th.zeros(3)}):
        build()


def test_what_weights_explain_is_built_once(monkeypatch):
    seen = []

    class Once(nn.Linear):
        def __init__(self):
            seen.append(self)
            super().__init__(2**18 // 4, 5)

    monkeypatch.setattr(names, "MOST_NUMBERS", 2**18)
    with names.Bounded({"a": th.zeros(2**18)}):
        before = th.get_rng_state()
        th.zeros(3).uniform_().sum().item()
        layer = Once()
    assert layer.weight.device.type == "cpu" and len(seen) == 1
    th.set_rng_state(before)
    th.zeros(3).uniform_()
    assert Once().weight.equal(layer.weight)


@pytest.mark.parametrize("activation", [nn.ReLU, partial(nn.LeakyReLU, 0.2), nn.Identity, nn.Softmax, Squares])
def test_activations_of_torch_and_of_the_program_are_allowed(activation):
    require_activation({"activation_fn": activation})


@pytest.mark.parametrize("activation", [nn.BatchNorm1d, nn.Upsample, partial(nn.Upsample, 9), NatureCNN])
def test_other_modules_are_registered_to_be_activations(activation):
    with pytest.raises(Refused, match="not one of torch's activations"):
        require_activation({"activation_fn": activation})
    register(nn.BatchNorm1d)
    require_activation({"activation_fn": nn.BatchNorm1d})


@pytest.mark.parametrize("cls", [PPO, PPO_Plus])
def test_a_file_does_not_choose_other_modules_as_activations(cls, tmp_path):
    model = cls("MlpPolicy", "CartPole-v1", device="cpu", policy_kwargs={"activation_fn": nn.Identity})
    model.policy_kwargs = {"activation_fn": nn.Flatten}
    model.save(tmp_path / "model")
    with pytest.raises(Refused, match="Flatten.*is not one of torch's activations"):
        PPO_Plus.load(tmp_path / "model")
    given = {"activation_fn": nn.Flatten}
    assert PPO_Plus.load(tmp_path / "model", policy_kwargs=given).policy_kwargs == given
