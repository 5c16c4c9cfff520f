"""A value whose pickle runs a command, and a guard against reading any."""

import os
import pickle

import torch as th


class Evil:
    """Makes a file when it is read."""

    def __init__(self, path, function=os.system):
        self.path, self.function = path, function

    def __reduce__(self):
        return self.function, (f"touch {self.path}" if self.function is os.system else str(self.path),)


def forbid_pickles(monkeypatch):
    """Let reading a pickle fail."""

    def load(*_, **__):
        raise AssertionError("a pickle was read")

    for module, name in ((pickle, "load"), (pickle, "loads"), (th, "load")):
        monkeypatch.setattr(module, name, load)
