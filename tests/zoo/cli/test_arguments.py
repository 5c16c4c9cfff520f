"""Arguments that several commands have."""

import argparse

import pytest
import torch as th

from ppo_plus.zoo.cli import main, make_parser
from ppo_plus.zoo.cli.arguments import Parser, interval, key_value


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("gamma:0.9", 0.9),
        ("learning_rate:lin_1e-3", "lin_1e-3"),
        ("use_sde:true", True),
        ("use_sde:True", True),
        ("target_kl:None", None),
        ("sde_sample_freq:'episode'", "episode"),
        ("sde_sample_freq:episode", "episode"),
        ("net:dict(a=[1, 2])", {"a": [1, 2]}),
        ("path:'a:b'", "a:b"),
        ("wrapper:gymnasium.wrappers.TimeLimit", "gymnasium.wrappers.TimeLimit"),
    ],
)
def test_key_value(text, expected):
    assert key_value(text) == (text.split(":")[0], expected)


@pytest.mark.parametrize("command", ["train", "tune"])
def test_a_repeated_option_adds_to_the_first(command):
    words = "-params gamma:1 -params n_steps:8 --env-kwargs a:1 --env-kwargs b:2 c:3 --eval-env-kwargs a:4"
    words += " --eval-env-kwargs b:5 --gym-packages csv --gym-packages json"
    args = make_parser().parse_args([command, "--env", "CartPole-v1", *words.split()])
    assert args.hyperparams == {"gamma": 1, "n_steps": 8} and args.env_kwargs == {"a": 1, "b": 2, "c": 3}
    assert args.eval_env_kwargs == {"a": 4, "b": 5} and args.gym_packages == ["csv", "json"]


@pytest.mark.parametrize("option", ["--hyperparams", "--env-kwargs", "--eval-env-kwargs"])
def test_a_repeated_key_is_an_error(option, capsys):
    for words in (["a:1", "a:2"], ["a:1", option, "a:2"]):
        with pytest.raises(SystemExit):
            make_parser().parse_args(["train", "--env", "CartPole-v1", option, *words])
        assert f"{option} a is given twice" in capsys.readouterr().err


def test_an_interval_is_a_number():
    with pytest.raises(argparse.ArgumentTypeError):
        interval("nan")


@pytest.mark.parametrize("text", ["gamma", ":1", "gamma:", "a:__import__('os').system('true')", "a:open('x')", "a:[x]"])
def test_not_a_key_value(text):
    with pytest.raises(argparse.ArgumentTypeError):
        key_value(text)


def test_a_gpu_that_is_not_there(folder):
    if th.cuda.is_available():
        pytest.skip("it is there")
    with pytest.warns(UserWarning, match="device='cuda': torch finds no GPU here, so training runs on the CPU"):
        main(["train", "--env", "CartPole-v1", "--device", "cuda", "--dry-run"])


def test_errors_are_one_line(capsys):
    with pytest.raises(SystemExit) as ended:
        Parser(prog="ppo-plus train").error("n_steps=0\n  must be  at least 1")
    assert ended.value.code == 2
    assert capsys.readouterr().err == "ppo-plus train: error: n_steps=0 must be at least 1\n"
