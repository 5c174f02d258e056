"""Forks processes that have all imports behind them; `tests.processes` starts it and says what they run.

Nothing here may start a thread or a process group: a forked process would have the half of it.
"""

import gc
import os
import pickle
import signal
import sys
from multiprocessing.connection import Connection

import numpy
import pytest  # noqa: F401
import torch._dynamo
import torch.distributed.checkpoint  # noqa: F401

import wavelet  # noqa: F401

from . import models  # noqa: F401


def wait_for_work(connection):
    """Return in a new process, with what it is to do; in the server, only to end."""
    while True:
        try:
            work = connection.recv()
        except EOFError:  # nobody is left to ask
            sys.exit()
        process = os.fork()
        if process == 0:
            connection.close()
            return work
        connection.send(process)
        connection.send(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]))


def begin(output, environment, folder):
    """Be as a process that somebody has just started there."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, path in enumerate((os.devnull, output, output)):
        opened = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        os.dup2(opened, number)
        os.close(opened)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    numpy.random.seed()  # or all processes of this server draw the same


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the processes; the server ends when they do
    gc.freeze()
    *place, call = wait_for_work(Connection(int(sys.argv[1])))
    begin(*place)
    function, arguments = pickle.loads(call)
    function(*arguments)  # and the end is that of any Python: its threads, its atexit, its exit code
