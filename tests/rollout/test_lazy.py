"""Values that are computed on access."""

from ppo_plus.rollout.lazy import Lazy, LazyLocals


def test_readers_see_nothing_but_the_value():
    made = []
    seen = LazyLocals(a=Lazy(lambda: made.append("a") or 1), b=2)
    assert made == []
    assert seen["a"] == 1 and seen["a"] == 1 and made == ["a"]
    looks = (dict(seen), {**seen}, dict(seen.items()), seen.copy(), {} | dict(seen))
    assert all(look == {"a": 1, "b": 2} for look in looks)
    assert list(seen.values()) == [1, 2] and seen.get("a") == 1 and seen.get("c", 3) == 3
    assert seen.setdefault("a", 4) == 1 and seen.pop("a") == 1 and seen.pop("a", None) is None


def test_updating_does_not_make_the_values():
    seen = LazyLocals()
    seen.update({"a": Lazy(lambda: 1 / 0)} | {"b": 1})
    assert seen["b"] == 1 and "a" in seen
