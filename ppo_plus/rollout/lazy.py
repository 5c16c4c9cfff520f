"""Values that are computed on access: what callbacks see of a step whose tensors are on a device."""

from collections.abc import Callable, ItemsView, Iterator, ValuesView
from typing import Any


class Lazy:
    """A value that is computed on first access."""

    def __init__(self, make: Callable[[], Any]):
        self._make: Callable[[], Any] | None = make
        self._value: Any = None

    @property
    def is_made(self) -> bool:
        """Whether it has been computed."""
        return self._make is None

    def __call__(self) -> Any:
        """The value."""
        if self._make is not None:
            self._value, self._make = self._make(), None
        return self._value


class LazyLocals(dict[str, Any]):
    """A dict that returns the value of a :class:`Lazy` entry, however it is read."""

    def __getitem__(self, key: str) -> Any:
        value = super().__getitem__(key)
        return value() if isinstance(value, Lazy) else value

    def get(self, key: str, default: Any = None) -> Any:
        return self[key] if key in self else default

    def pop(self, key: str, *default: Any) -> Any:
        value = super().pop(key, *default)
        return value() if isinstance(value, Lazy) else value

    def setdefault(self, key: str, default: Any = None) -> Any:
        super().setdefault(key, default)
        return self[key]

    def __iter__(self) -> Iterator[str]:
        # Because this method is defined, `dict(locals)` and `{**locals}` read each value.
        return super().__iter__()

    def values(self) -> ValuesView[Any]:  # type: ignore[override]
        return ValuesView(self)

    def items(self) -> ItemsView[str, Any]:  # type: ignore[override]
        return ItemsView(self)

    def copy(self) -> dict[str, Any]:
        return dict(self.items())
