"""Settings files: which entry, and what is no file."""

import pytest

from ppo_plus.zoo.hyperparams import positive_int, read_entry


def test_an_exact_id_comes_first_then_atari_then_default(settings):
    path = settings("default: {a: 1}\natari: {a: 2}\nFoo-v0: {a: 3}\nALE/Foo-v5: {a: 4}")
    assert read_entry("Foo-v0", path) == ("Foo-v0", {"a": 3})
    assert read_entry("ALE/Foo-v5", path) == ("ALE/Foo-v5", {"a": 4})
    assert read_entry("ALE/Pong-v5", path) == ("atari", {"a": 2})
    assert read_entry("Bar-v0", path) == ("default", {"a": 1})


def test_an_atari_game_without_atari_entry_takes_the_default(settings):
    assert read_entry("ALE/Pong-v5", settings("default: {a: 1}"))[0] == "default"


def test_a_variant_is_that_entry_or_none(settings):
    path = settings("default: {a: 1}\nFoo-v0: {a: 2}\nFoo-v0/wide: {a: 3}")
    assert read_entry("Foo-v0", path, "wide") == ("Foo-v0/wide", {"a": 3})
    with pytest.raises(ValueError, match="no entry Foo-v0/deep; variants of Foo-v0: Foo-v0/wide"):
        read_entry("Foo-v0", path, "deep")


def test_merges_and_anchors(settings):
    path = settings("A: &a {x: 1, y: 2}\nB: {<<: *a, y: 3}")
    assert read_entry("B", path) == ("B", {"x": 1, "y": 3})


def test_no_entry(settings):
    with pytest.raises(ValueError, match="no entry Foo-v0 or default"):
        read_entry("Foo-v0", settings("Bar-v0: {}"))


def test_entry_that_is_no_mapping(settings):
    with pytest.raises(ValueError, match="settings.yml, Foo-v0: the entry must be a mapping"):
        read_entry("Foo-v0", settings("Foo-v0: 7"))


@pytest.mark.parametrize("text", ["a: [", "a: b: c", "\t", "a: !!float x", "a: !!python/name:os.system", "a: \x01"])
def test_broken_yaml(settings, text):
    with pytest.raises(ValueError, match="settings.yml is no valid YAML"):
        read_entry("Foo-v0", settings(text))


@pytest.mark.parametrize("text", ["", "just words", "[1, 2]"])
def test_yaml_that_is_no_mapping(settings, text):
    with pytest.raises(ValueError, match="settings.yml must be a mapping"):
        read_entry("Foo-v0", settings(text))


def test_yaml_cannot_run_code(settings, tmp_path):
    target = tmp_path / "ran"
    for tag in ("apply", "new"):
        with pytest.raises(ValueError, match="no valid YAML"):
            read_entry("Foo-v0", settings(f"Foo-v0: !!python/object/{tag}:os.mkdir ['{target}']"))
    assert not target.exists()


@pytest.mark.parametrize(
    "text",
    [
        "a0: &a0 [1]\n" + "".join(f"a{i + 1}: &a{i + 1} [{', '.join([f'*a{i}'] * 10)}]\n" for i in range(12)),
        "a: &a [*a]",
        "a: &a {b: *a}",
    ],
    ids=["grows", "list", "mapping"],
)
def test_anchors_that_never_end(settings, text):
    with pytest.raises(ValueError, match="more than 100000 values, or one that contains itself"):
        read_entry("a", settings(text))


def test_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_entry("Foo-v0", tmp_path / "nope.yml")


@pytest.mark.parametrize("value", [3, 3.0, "3", "3e0", " 3 "])
def test_positive_int(value):
    assert positive_int("n", value) == 3


@pytest.mark.parametrize("value", [0, -1, 2.5, "x", None, True, [3], float("nan"), float("inf"), "inf", ""])
def test_not_a_positive_int(value):
    with pytest.raises(ValueError, match="n must be a positive whole number"):
        positive_int("n", value)
