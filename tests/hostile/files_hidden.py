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


def links_of_nothing():
    os.close(os.open("one", os.O_WRONLY | os.O_CREAT))
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


def undumpable():
    """Asks the kernel to show its process to nobody."""
    import ctypes

    ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)
    kept = []
    for _ in range(FILES):
        kept.append(hidden())
        fill(kept[-1])
    time.sleep(100)


def behind_a_closed_program():
    """A program that may be executed and not read: the kernel shows its process to nobody. It fills files that have
    been removed."""
    with open("/bin/sh", "rb") as shell:
        text = shell.read()
    closed = os.open("closed", os.O_WRONLY | os.O_CREAT, 0o111)
    os.write(closed, text)
    os.close(closed)
    os.mkfifo("pipe")
    numbers = range(3, 10)
    script = "d=xxxxxxxxxxxxxxxx; for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14; do d=$d$d; done; exec "
    script += " ".join(f"{n}>held{n}" for n in numbers) + "; : >ready; while [ ! -e go ]; do :; done; "
    script += "".join(f"echo $d >&{n} || exit 1; " for n in [*numbers, *numbers]) + ": >done; read x <pipe"
    child = os.posix_spawn("./closed", ["sh", "-c", script], {})

    def until(name):
        while not os.path.exists(name):
            if os.waitpid(child, os.WNOHANG)[0]:
                raise OSError(28, "its writes fail")
            time.sleep(0.001)

    until("ready")
    for n in numbers:
        os.unlink(f"held{n}")
    os.close(os.open("go", os.O_WRONLY | os.O_CREAT))
    until("done")
    time.sleep(100)


globals()[how]()
