"""A value whose pickle runs a command."""

import os


class Evil:
    """Makes a file when it is read."""

    def __init__(self, path, function=os.system):
        self.path, self.function = path, function

    def __reduce__(self):
        return self.function, (f"touch {self.path}" if self.function is os.system else str(self.path),)
