"""Fills its folder where a look at it does not show: the first argument says how."""
import array
import mmap
import os
import socket
import sys
import threading
import time

SIZE = 512 << 10
FILES = 40
how = sys.argv[1]


def fill(fd):
    left = SIZE
    while left:
        left -= os.write(fd, b"x" * left)


def hidden():
    fd = os.open("hidden", os.O_RDWR | os.O_CREAT)
    os.unlink("hidden")
    return fd


def beyond_the_longest_path():
    for _ in range(30):
        os.mkdir("n" * 200)
        os.chdir("n" * 200)
    for number in range(FILES):
        fill(os.open(str(number), os.O_WRONLY | os.O_CREAT))


def mapped():
    kept = []
    for _ in range(FILES):
        fd = hidden()
        fill(fd)
        # A page of it is enough to keep the whole.
        kept.append(mmap.mmap(fd, 4096))
        os.close(fd)
    time.sleep(100)


def in_flight():
    left, right = socket.socketpair()
    for _ in range(FILES):
        fd = hidden()
        fill(fd)
        left.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))])
        os.close(fd)
    time.sleep(100)


def of_a_thread():
    """Its first thread ends; another one holds the files."""
    import ctypes

    def hold():
        kept = []
        for _ in range(FILES):
            kept.append(hidden())
            fill(kept[-1])
        time.sleep(100)

    threading.Thread(target=hold).start()
    ctypes.CDLL(None).syscall(60 if os.uname().machine == "x86_64" else 93, 0)


def at_once():
    for number in range(FILES):
        os.posix_fallocate(os.open(str(number), os.O_WRONLY | os.O_CREAT), 0, SIZE)
    os._exit(0)


def links():
    fill(os.open("one", os.O_WRONLY | os.O_CREAT))
    for number in range(6000):
        os.link("one", str(number))


def attributes():
    """Data beside the data: extended attributes, long links, names of folders."""
    for number in range(6000):
        fd = os.open(f"{number}" + "n" * 200, os.O_WRONLY | os.O_CREAT)
        try:
            os.setxattr(fd, "user.data", b"x" * 3000)
        except OSError:
            pass
        os.close(fd)
        os.symlink("t" * 4000, f"l{number}")


globals()[how]()
