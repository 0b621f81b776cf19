"""Uses CPU time where its main process's count does not show it: the first argument says how."""
import os
import signal
import sys
import threading
import time

how = sys.argv[1]


def fork():
    """Forks, as soon as the limit on processes allows: those that have just ended may still count."""
    while True:
        try:
            return os.fork()
        except BlockingIOError:
            time.sleep(0.001)


def burn(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def reaped():
    """Nobody waits for the children, so nobody is told their time."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        if fork() == 0:
            burn(0.05)
            os._exit(0)
        try:
            os.wait()
        except ChildProcessError:
            pass


def short():
    """Most children are never seen at all."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        if fork() == 0:
            burn(0.002)
            os._exit(0)
        try:
            os.wait()
        except ChildProcessError:
            pass


def waited():
    while True:
        if fork() == 0:
            burn(0.003)
            os._exit(0)
        os.wait()


def orphaned():
    while True:
        if fork() == 0:
            if fork() == 0:
                burn(0.02)
            os._exit(0)
        os.wait()


def behind_a_zombie():
    import ctypes

    def spin():
        while True:
            pass

    threading.Thread(target=spin).start()
    ctypes.CDLL(None).syscall(60 if os.uname().machine == "x86_64" else 93, 0)


def slept_and_stolen():
    """Sleeps over the clock's ticks, and handles the signal of the time limit."""
    signal.signal(signal.SIGXCPU, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    signal.signal(signal.SIGALRM, lambda *_: None)
    while True:
        burn(0.0009)
        os.sched_yield()


globals()[how]()
