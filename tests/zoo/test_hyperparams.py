"""Settings files, and the Python text in them."""

import importlib.util
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch as th
import yaml
from hypothesis import given
from hypothesis import settings as at_most
from hypothesis import strategies as st
from torch import nn

from ppo_plus import Cost
from ppo_plus.formulas.exploration import ColoredNoise, StateDependentNoise, WhiteNoise
from ppo_plus.formulas.kl_control import AdaptiveLearningRate, AdaptivePenalty
from ppo_plus.zoo.hyperparams import format_literal, parse_literal, positive_int, read_entry, read_mapping, to_yaml


def test_an_exact_id_comes_first_then_atari_then_default(settings):
    path = settings("default: {a: 1}\natari: {a: 2}\nFoo-v0: {a: 3}\nALE/Foo-v5: {a: 4}")
    assert read_entry("Foo-v0", path) == ("Foo-v0", {"a": 3})
    assert read_entry("ALE/Foo-v5", path) == ("ALE/Foo-v5", {"a": 4})
    assert read_entry("ALE/Pong-v5", path) == ("atari", {"a": 2})
    assert read_entry("Bar-v0", path) == ("default", {"a": 1})
    assert read_entry("ALE/Pong-v5", settings("default: {a: 1}"))[0] == "default"


def test_a_variant_is_that_entry_or_none(settings):
    path = settings("default: {a: 1}\nFoo-v0: {a: 2}\nFoo-v0/wide: {a: 3}")
    assert read_entry("Foo-v0", path, "wide") == ("Foo-v0/wide", {"a": 3})
    with pytest.raises(ValueError, match="no entry Foo-v0/deep; variants of Foo-v0: wide"):
        read_entry("Foo-v0", path, "deep")
    with pytest.raises(ValueError, match="no entry Foo-v0 or default"):
        read_entry("Foo-v0", settings("Bar-v0: {}"))
    with pytest.raises(ValueError, match="settings.yml, Foo-v0: the entry must be a mapping"):
        read_entry("Foo-v0", settings("Foo-v0: 7"))


def test_an_id_with_its_module_comes_first_then_the_bare_one(settings):
    path = settings("Foo-v0: {a: 1}\nmine:Foo-v0: {a: 2}\nmine:Foo-v0/wide: {a: 3}")
    assert read_entry("mine:Foo-v0", path) == ("mine:Foo-v0", {"a": 2})
    assert read_entry("other:Foo-v0", path) == ("Foo-v0", {"a": 1})
    assert read_entry("mine:Foo-v0", path, "wide") == ("mine:Foo-v0/wide", {"a": 3})
    with pytest.raises(ValueError, match="no entry mine:Foo-v0/deep or Foo-v0/deep; .*Foo-v0: wide"):
        read_entry("mine:Foo-v0", path, "deep")


def test_the_settings_of_a_run_are_those_of_any_environment(settings):
    path = settings("n_timesteps: 64\nn_steps: 32")
    assert read_entry("Foo-v0", path) == ("Foo-v0", {"n_timesteps": 64, "n_steps": 32})
    with pytest.raises(ValueError, match="no entry Foo-v0/wide"):
        read_entry("Foo-v0", path, "wide")


LISTS = "a0: &a0 [x, x]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]\n" for i in range(1, 60))
MERGES = "a0: &a0 {k0: 1}\n" + "".join(f"a{i}: &a{i} {{<<: [*a{i - 1}, *a{i - 1}]}}\n" for i in range(1, 60))
MANY = "not valid YAML: its aliases stand for more than 100000 values"
#: Files that are damaged or malicious, and what the message says.
BROKEN = [
    *((text, "not valid YAML") for text in ("a: [", "a: b: c", "\t", "a: \x01", "a: !!float x", "a: !!int ''")),
    *((text, "not valid YAML") for text in ("a: !!python/name:os.system", "a: !!bool maybe", "a: !!timestamp now")),
    *((text, "must be a mapping") for text in ("", "just words", "[1, 2]", "x" * 2**12)),
    ("a: " + "[" * 2_000, "recursion"),
    ("a: " + "{b: " * 2_000, "recursion"),
    ("\n".join(" " * i + "a:" for i in range(1_000)), "recursion"),
    ("a: " + "9" * 50_000, "not valid YAML: Exceeds the limit"),
    ("a: 010", "not valid YAML: leading zeros"),
    ("? [1]\n: 2", "unhashable"),
    *((text, MANY) for text in (LISTS, MERGES, "a: &a [*a]", "a: &a {b: *a}")),
    ("A: {x: 1}\nB:\n  gamma: 0.9\n  n_steps: 8\n  gamma: 1", "the key 'gamma' in line 5 is already in line 3"),
    ("A: {x: 1}\nB: {x: 1}\nA: {x: 2}", "the key 'A' in line 3 is already in line 1"),
    ("A: {x: 1, 'x': 2}", "the key 'x' in line 1 is already in line 1"),
    ("A: &a {x: 1, x: 2}\nB: {<<: *a}", "the key 'x' in line"),
    ("A:\n  - b: {x: 1, y: 2, x: 3}", "the key 'x' in line"),
]


@pytest.mark.parametrize(("text", "message"), BROKEN, ids=lambda text: text[:30])
def test_broken_yaml_is_one_short_line(settings, text, message):
    with pytest.raises(ValueError, match=f"settings.yml .*{message}") as error:
        read_mapping(settings(text))
    assert "\n" not in str(error.value) and len(str(error.value)) < 2_000


def test_yaml_cannot_run_code(settings, tmp_path):
    target = tmp_path / "ran"
    for tag in ("apply", "new"):
        with pytest.raises(ValueError, match="not valid YAML"):
            read_entry("Foo-v0", settings(f"Foo-v0: !!python/object/{tag}:os.mkdir ['{target}']"))
    assert not target.exists()


def test_ordinary_merges_of_all_kinds(settings):
    """One mapping, several (the first one counts), merged ones merged, an alias of plain data, numbers of all kinds."""
    path = settings(
        "A: &a {x: 1, y: 2}\nB: &b {<<: *a, y: 3}\nC: {<<: [*b, {y: 4, z: 0x10}], w: &w [1e3, 1.5e+3, 1_000]}\n"
        "D: {<<: *b, w: *w, n: 123456789012345678901234567890}"
    )
    assert read_mapping(path) == {
        "A": {"x": 1, "y": 2},
        "B": {"x": 1, "y": 3},
        "C": {"x": 1, "y": 3, "z": 16, "w": [1000.0, 1500.0, 1000]},
        "D": {"x": 1, "y": 3, "w": [1000.0, 1500.0, 1000], "n": 123456789012345678901234567890},
    }


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e5", 1e5),
        ("-2E-3", -2e-3),
        ("1.", 1.0),
        (".5", 0.5),
        ("+.5e1", 5.0),
        ("0", 0),
        ("1_000", 1000),
        (".inf", float("inf")),
        ("-.inf", -float("inf")),
        (".5e3", 500.0),
        # YAML 1.1 would make numbers of these, which nobody means.
        ("1:30", "1:30"),
        ("1:30.5", "1:30.5"),
        ("0b1", "0b1"),
        ("2023-01-01", "2023-01-01"),
        ("1e", "1e"),
        ("None", None),
        ("[None, Nonee]", [None, "Nonee"]),
        ("'1e5'", "1e5"),
    ],
)
def test_numbers_and_none_are_those_of_python(settings, text, value):
    (read,) = read_mapping(settings(f"a: {text}")).values()
    assert read == value and type(read) is type(value)


@pytest.mark.parametrize("value", [3, 3.0, "3", "3e0", " 3 "])
def test_positive_int(value):
    assert positive_int("n", value) == 3
    for bad in (0, -1, 2.5, "x", None, True, [3], float("nan"), float("inf"), "inf", ""):
        with pytest.raises(ValueError, match="n must be a positive whole number"):
            positive_int("n", bad)


@at_most(max_examples=40)
@given(
    st.sampled_from(["08", "010", "1e5", "-1E-3", "None", "1:30", ".5", ".5e3", "+_1", "-.inf"])
    | st.text()
    | st.floats()
)
def test_written_settings_are_read_back(value):
    """As in a file: text that looks like a number stays text."""
    with TemporaryDirectory() as folder:
        path = Path(folder, "settings.yml")
        path.write_text(to_yaml({"a": {"b": value}}))
        (read,) = read_mapping(path)["a"].values()
    assert type(read) is type(value) and (read == value or value != value)


#: What rl_zoo3's files may name.
NAMESPACE = {"nn": nn, "th": th}
#: What ours may name besides.
OWN = {"ColoredNoise": ColoredNoise, "StateDependentNoise": StateDependentNoise, "AdaptivePenalty": AdaptivePenalty}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1),
        ("-2.5e-3", -2.5e-3),
        ("'text'", "text"),
        ("[1, (2, 3), None, True]", [1, (2, 3), None, True]),
        ("{'norm_obs': True, 'clip_obs': 5.0}", {"norm_obs": True, "clip_obs": 5.0}),
        ("dict(log_std_init=-3.29, ortho_init=False)", {"log_std_init": -3.29, "ortho_init": False}),
        ("  dict(net_arch=dict(pi=[64], vf=[]),\n activation_fn=nn.ReLU) ", None),
        ("nn.Tanh", nn.Tanh),
        ("th.nn.Tanh", nn.Tanh),
        ("torch.nn.Tanh", nn.Tanh),
        ("th.optim.AdamW", th.optim.AdamW),
        ("dict()", {}),
        ("ColoredNoise(beta=0.5)", ColoredNoise(0.5)),
        ("AdaptiveLearningRate()", AdaptiveLearningRate()),
        ("dict(a=[WhiteNoise()])", {"a": [WhiteNoise()]}),
        ("[Cost(source='cost', limit=5.0)]", [Cost("cost", limit=5.0)]),
        ("[Cost('cost', limit=5.0)]", [Cost("cost", limit=5.0)]),
    ],
)
def test_reads(text, value):
    expected = {"net_arch": {"pi": [64], "vf": []}, "activation_fn": nn.ReLU} if value is None else value
    assert parse_literal(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')",
        "dict(x=__import__('os'))",
        "dict(**{'x': 1})",
        "{**{}}",
        "().__class__.__bases__[0].__subclasses__()",
        "nn.ReLU()",
        "nn.Module.__subclasses__()",
        "[x for x in (1, 2)]",
        "f'{1}'",
        "9**9**9",
        "open",
        "x := 1",
        "{[]: 1}",
        "-'a'",
        "dict(activation_fn=th.load)",
        "torch.hub.load('x')",
        "th.optim.AdamW.__init__",
        "sb3.common.base_class.BaseAlgorithm",
        "dict([('x', 1)])",
        "ColoredNoise(*[0.5])",
        "ColoredNoise(beta=open('x'))",
        "exploration.ColoredNoise(beta=0.5)",
        "getattr(nn, 'ReLU')",
        "dict(a=(yield))",
        "nn['ReLU']",
        "1 if True else 2",
        "{1, 2}",
    ],
)
def test_code_is_an_error(text):
    with pytest.raises(ValueError, match="not allowed|not a Python expression"):
        parse_literal(text)


#: Text that names something wrong, and what the message says.
WRONG = [
    *(
        (f"nn.{name}", f"'torch.nn.{name}' is not a subclass of torch.nn")
        for name in ("functional", "init", "__name__", "Parameter", "__builtins__")
    ),
    ("th.optim.lr_scheduler", "'torch.optim.lr_scheduler' is not a subclass of torch.nn"),
    ("nn.Relu", "'torch.nn.Relu' cannot be imported .*: is its name right"),
    ("th.optim.ReLU", "'torch.optim.ReLU' cannot be imported .*: is its name right"),
    *((text, "not a Python expression") for text in ("", "dict(", "1; 2", "import os", "\0", "9" * 5000)),
    ("[" * 10_000 + "]" * 10_000, "nested too deeply|not a Python expression"),
    ("-" * 100_000 + "1", "nested too deeply|not a Python expression"),
    ("1" + "+1" * 5000, "not allowed|nested too deeply"),
    ("f(" + "1, " * 1000 + ")", r"not allowed: write only .*dict\(\.\.\.\)"),
    ("ColoredNoise(gamma=1)", "ColoredNoise: .*gamma"),
    ("ColoredNoise(beta=-1)", "beta=-1 must be"),
    ("dict(net_arch=[64], net_arch=[8])", "has an argument twice"),
]


@pytest.mark.parametrize(("text", "message"), WRONG, ids=lambda text: text[:30])
def test_mistakes_in_python_text(text, message):
    with pytest.raises(ValueError, match=message) as error:
        parse_literal(text)
    assert len(str(error.value)) < 400


def zoo_texts():
    """What rl_zoo3's files write as Python. The package is only looked up: importing it changes Gymnasium."""
    package = importlib.util.find_spec("rl_zoo3")
    if package is None:
        pytest.skip("rl_zoo3 is not installed")
    for path in sorted(Path(package.origin).with_name("hyperparams").glob("ppo*.yml")):
        for name, entry in yaml.safe_load(path.read_bytes()).items():
            for key, value in entry.items():
                if isinstance(value, str) and any(bracket in value for bracket in "({["):
                    yield f"{path.stem}, {name}, {key}", value


def test_reads_all_of_rl_zoo3_as_python_does():
    texts = dict(zoo_texts())
    assert sum(name.startswith("ppo,") for name in texts) >= 10
    for name, text in texts.items():
        expected = eval(text, dict(NAMESPACE))
        assert parse_literal(text) == expected, name
        assert eval(format_literal(expected), dict(NAMESPACE)) == expected, name


constants = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
classes = st.sampled_from([nn.ReLU, nn.Module, th.optim.Adam])
strategies = (
    st.floats(0, 2).map(ColoredNoise)
    | st.booleans().map(lambda full_std: StateDependentNoise(full_std=full_std))
    | st.just(AdaptivePenalty())
)
values = st.recursive(
    constants | classes | strategies,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.sampled_from(["a", "net_arch", "class", "1x"]) | st.integers(), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(values)
def test_written_values_read_back_and_are_python(value):
    text = format_literal(value)
    assert eval(text, NAMESPACE | OWN) == value
    try:
        assert parse_literal(text) == value
    except ValueError as error:
        assert "nested too deeply" in str(error)


@pytest.mark.parametrize("value", [object(), {1, 2}, b"x", 1j, float("nan"), float("inf"), int, print, {"a": object()}])
def test_values_that_cannot_be_written(value):
    with pytest.raises(ValueError, match="cannot be written"):
        format_literal(value)
