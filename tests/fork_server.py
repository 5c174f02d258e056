"""Forks processes that have all imports behind them; `tests.processes` starts it and says what they run.

Nothing here may start a thread or a process group: a forked process would have the half of it.
"""

import gc
import os
import pickle
import signal
import sys
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle

import numpy
import pytest  # noqa: F401
import torch._dynamo
import torch.distributed.checkpoint  # noqa: F401

import wavelet.cli.app  # noqa: F401

from . import models  # noqa: F401


def wait_for_work(connection):
    """Return in a new process, with what it is to do; in the server, only to end."""
    while True:
        try:
            work, files = connection.recv(), [recv_handle(connection) for _ in range(3)]
        except EOFError:  # nobody is left to ask
            sys.exit()
        process = os.fork()
        if process == 0:
            connection.close()
            return work, files
        for file in files:
            os.close(file)
        connection.send(process)
        connection.send(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]))


def begin(environment, folder, files):
    """Be as a process that somebody has just started there, with the input, the output and the errors given."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.path[0] = str(folder)
    numpy.random.seed()  # or all processes of this server draw the same


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the processes; the server ends when they do
    gc.freeze()
    (call, *place), files = wait_for_work(Connection(int(sys.argv[1])))
    begin(*place, files)
    function, arguments = pickle.loads(call)
    function(*arguments)  # and the end is that of any Python: its threads, its atexit, its exit code
