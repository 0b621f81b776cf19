"""Holds memory where the size of its main process does not show it: the first argument says how."""
import ctypes
import mmap
import os
import signal
import socket
import sys
import threading
import time

MANY = 1 << 30
MADV_DONTNEED = 4
how = sys.argv[1]
libc = ctypes.CDLL(None, use_errno=True)


def fork():
    """Forks, as soon as the limit on processes allows: those that have just ended may still count."""
    while True:
        try:
            return os.fork()
        except BlockingIOError:
            time.sleep(0.001)


def touch(area, size):
    for at in range(0, size, 4096):
        area[at] = 1


def zombie_leader():
    def hold():
        touch(mmap.mmap(-1, MANY, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), MANY)
        time.sleep(100)

    threading.Thread(target=hold).start()
    libc.syscall(60 if os.uname().machine == "x86_64" else 93, 0)


def copied():
    """Memory of a parent, of which each child makes a copy of its own and ends."""
    area = bytearray(b"x") * (100 << 20)
    children = []
    for _ in range(5):
        child = fork()
        if child == 0:
            for at in range(0, len(area), 4096):
                area[at] = 2
            time.sleep(1)
            os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)


def given_up():
    """Pages of shared memory stay when they are given up."""
    size = 16 << 20
    area = mmap.mmap(-1, MANY)
    for begin in range(0, MANY, size):
        for at in range(begin, begin + size, 4096):
            area[at] = 1
        area.madvise(MADV_DONTNEED, begin, size)
    time.sleep(100)


def unmapped():
    """A page that stays mapped keeps the whole of a shared memory."""
    kept = []
    libc.mmap.restype = ctypes.c_void_p
    size = 32 << 20
    for _ in range(MANY // size):
        area = libc.mmap(None, ctypes.c_size_t(size), 3, 0x21, -1, ctypes.c_long(0))
        ctypes.memset(area, 1, size)
        libc.munmap(ctypes.c_void_p(area + 4096), ctypes.c_size_t(size - 4096))
        kept.append(area)
    time.sleep(100)


def moved():
    """Memory that moves to another address at each step."""
    area = mmap.mmap(-1, 1 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    size = 1 << 20
    while True:
        area.resize(size + (1 << 20))
        for at in range(size, size + (1 << 20), 4096):
            area[at] = 1
        size += 1 << 20


def orphans():
    """Each process is small and soon an orphan, and ignores every signal."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for _ in range(12):
        if fork() == 0:
            os.setsid()
            if fork() == 0:
                for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                    signal.signal(number, signal.SIG_IGN)
                held = bytearray(b"x" * (40 << 20))
                time.sleep(100)
            os._exit(0)
    time.sleep(100)


def fills_its_file():
    """A mapped file of its own: a file system in memory holds it too."""
    while True:
        number = len(globals())
        fd = os.open(f"{number}", os.O_RDWR | os.O_CREAT)
        os.ftruncate(fd, 1 << 19)
        area = mmap.mmap(fd, 1 << 19)
        touch(area, 1 << 19)
        globals()[f"area{number}"] = area
        os.close(fd)


def sockets():
    """What is sent and never received is in the kernel."""
    for _ in range(12):
        if fork() == 0:
            break
    else:
        time.sleep(100)
    kept = []
    for _ in range(100):
        kept.extend(socket.socketpair())
        for end in kept[-2:]:
            end.setblocking(False)
            try:
                while True:
                    end.send(b"x" * 65536)
            except BlockingIOError:
                pass
    time.sleep(100)


def backlog():
    """What is sent over connections that nobody accepts, and whose other end is closed, is in the kernel."""
    for number in range(40):
        server = socket.socket(socket.AF_UNIX)
        server.bind(f"server{number}")
        server.listen(100)
        globals()[f"server{number}"] = server
        for _ in range(90):
            client = socket.socket(socket.AF_UNIX)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 30)
            client.connect(f"server{number}")
            client.setblocking(False)
            try:
                while True:
                    client.send(b"x" * 65536)
            except BlockingIOError:
                pass
            client.close()
    time.sleep(100)


def tables():
    """A page that is read and never written is in no count, and the tables that lead to it neither."""
    size, flags = 15 << 30, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000
    for _ in range(12):
        if fork() == 0:
            break
    else:
        time.sleep(100)
    area = mmap.mmap(-1, size, flags=flags, prot=mmap.PROT_READ)
    area.madvise(15)
    for at in range(0, size, 2 << 20):
        area[at]
    time.sleep(100)


globals()[how]()
