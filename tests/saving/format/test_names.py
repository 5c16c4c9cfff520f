"""A file may ask for what models are built from, by public names, and for nothing else."""

import functools
import sys

import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.torch_layers import NatureCNN

import ppo_plus
from ppo_plus.formulas.schedules import Linear
from ppo_plus.saving.format import names
from ppo_plus.saving.format.names import Refused, find, find_class_of_objects, name_of, register, require_attributes
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
    "builtins:exec",
    "torch.hub:load",
    "torch:load",
    "torch.utils.cpp_extension:load",
    "torch.nn.modules.module:Module.__reduce__",
    "torch.nn.modules.module:torch.hub.load",
    "torch.nn.modules.module:torch",
    "torch.nn.modules.module:warnings",
    "torch.nn.modules.module:Any",
    "torch.nn.modules.module:register_module_forward_hook",
    "torch.nn.modules:__builtins__",
    "torch.nn.modules:__loader__",
    "torch.nn:functional",
    "torch.nn:Parameter",
    "torch.nn:DataParallel",
    "torch.optim:lr_scheduler",
    "torch.nn.modules.activation:Tanh",
    "torch.nn.modules.module:Module",
    "torch.nn.parallel.distributed:DistributedDataParallel",
    "torch.optim.optimizer:register_optimizer_step_pre_hook",
    "torch.optim.lr_scheduler:LambdaLR",
    "torch.jit:ScriptModule",
    "numpy:load",
    "numpy:memmap",
    "numpy.lib.npyio:NpzFile",
    "ppo_plus.ppo:pathlib.os.system",
    "ppo_plus.ppo:PPO_Plus",
    "ppo_plus:PPO_Plus",
    "ppo_plus:register",
    "ppo_plus:import_module",
    "ppo_plus.formulas.exploration:WhiteNoise",
    "ppo_plus:MlpPolicy",
    "ppo_plus.zoo.registry:import_class",
    "ppo_plus.__main__:main",
    "ppo_plus.policy.policies:ActorCriticPolicy.load",
    "ppo_plus.formulas.schedules:make_schedule",
    "stable_baselines3.common.policies:BaseModel.load",
    "stable_baselines3.common.policies:ActorCriticPolicy.load",
    "stable_baselines3.common.policies:np",
    # Of a kind that files may ask for, but not by the name of a module that has only imported it.
    "stable_baselines3.common.policies:NatureCNN",
    "stable_baselines3.common.policies:nn.Module",
    "stable_baselines3.common.save_util:load_from_pkl",
    "stable_baselines3.common.vec_env.vec_normalize:VecNormalize",
    "stable_baselines3.common.buffers:ReplayBuffer",
    "gymnasium.spaces.space:Any",
    "gymnasium.spaces..box:Box",
    "gymnasium.spaces.box:",
    "gymnasium.spaces.no_such:Box",
    "sb3_contrib.common.../x:y",
    "functools:partial",
    "",
    ":",
    "nothing",
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
