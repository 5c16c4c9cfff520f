"""A value whose pickle runs a command, and a guard against reading any."""

import base64
import json
import os
import pickle
import zipfile

import torch as th


class Evil:
    """Makes a file when it is read."""

    def __init__(self, path, function=os.system):
        self.path, self.function = path, function

    def __reduce__(self):
        return self.function, (f"touch {self.path}" if self.function is os.system else str(self.path),)


def poison(path, attribute, evil):
    """Put a pickle in place of an attribute of a model of SB3; returns the path."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    data = json.loads(members["data"])
    data[attribute] = {":type:": "x", ":serialized:": base64.b64encode(pickle.dumps(evil)).decode()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in (members | {"data": json.dumps(data).encode()}).items():
            archive.writestr(name, content)
    return path


def forbid_pickles(monkeypatch):
    """Let reading a pickle fail."""

    def load(*_, **__):
        raise AssertionError("a pickle was read")

    for module, name in ((pickle, "load"), (pickle, "loads"), (th, "load")):
        monkeypatch.setattr(module, name, load)
