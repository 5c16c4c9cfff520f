"""Processes forked from one that has imported the package, so that they start at once."""

import multiprocessing
import os
import pickle
import traceback
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location

import torch as th

from ppo_plus.distributed.ranks import Ranks

CONTEXT = multiprocessing.get_context("forkserver")


def start(code):
    """A process that runs code."""
    process = CONTEXT.Process(target=exec, args=(code, {}), daemon=True)
    process.start()
    return process


class Processes:
    """Processes that train together, in which tests run side by side.

    :param folder: an empty folder
    """

    def __init__(self, folder, size=2):
        self.n_calls = 0
        self.workers = []
        for rank in range(size):
            ours, theirs = CONTEXT.Pipe()
            process = CONTEXT.Process(target=serve, args=(theirs, folder / "store", rank, size), daemon=True)
            process.start()
            theirs.close()
            self.workers.append((process, ours))

    def __call__(self, function, *arguments):
        """What a function of a test file returns in each process, called with its ranks, in a new process group.

        :raises AssertionError: it raised an error in some of them; the message has their tracebacks
        """
        self.n_calls += 1
        call = self.n_calls, function.__code__.co_filename, function.__name__, arguments
        for _, connection in self.workers:
            connection.send(call)
        answers = [pickle.loads(connection.recv_bytes()) for _, connection in self.workers]
        errors = [f"rank {rank}: {error}" for rank, (_, error) in enumerate(answers) if error]
        assert not errors, "\n".join(errors)
        return [value for value, _ in answers]

    def end(self):
        for process, connection in self.workers:
            connection.close()
            process.join()


def in_each(test):
    """A test that runs in each of the processes of the fixture ``processes``, given its ranks, then other fixtures."""
    names = test.__code__.co_varnames[1 : test.__code__.co_argcount]

    def run(processes, request):
        processes(test, *map(request.getfixturevalue, names))

    run.test = test
    return run


def serve(connection, store, rank, size):
    """Run what comes through a connection until it is closed."""
    th.set_num_threads(1)
    os.environ["LOCAL_RANK"] = str(rank)
    while True:
        try:
            number, path, name, arguments = connection.recv()
        except EOFError:
            return
        # A group for each call: an error ends it.
        own = th.distributed.PrefixStore(str(number), th.distributed.FileStore(str(store), size))
        th.distributed.init_process_group("gloo", store=own, rank=rank, world_size=size)
        ranks, answer = Ranks.present(), (None, None)
        try:
            function = getattr(module_of(path), name)
            answer = getattr(function, "test", function)(ranks, *arguments), None
        except BaseException:
            answer = None, traceback.format_exc()
        finally:
            ranks.leave()
        # Copied: what torch puts into shared memory instead ends with this process.
        connection.send_bytes(pickle.dumps(answer))


@cache
def module_of(path):
    """The module of a test file."""
    spec = spec_from_file_location("tested", path)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
