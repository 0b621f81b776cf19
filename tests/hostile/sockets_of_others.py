"""Tries to connect to the sockets whose paths are its arguments: directly, over links, from another folder, and with an
address that another thread changes meanwhile."""
import ctypes
import os
import socket
import sys
import threading

here = os.getcwd()
libc = ctypes.CDLL(None, use_errno=True)


def attempt(path):
    with socket.socket(socket.AF_UNIX) as own:
        own.connect(path)
        print("ESCAPED", path)


def refused(path):
    try:
        attempt(path)
    except OSError:
        return
    print("ESCAPED", path)


for number, path in enumerate(sys.argv[1:]):
    folder, name = os.path.split(path)
    os.symlink(path, f"link{number}")
    os.symlink(folder, f"folder{number}")
    for way in [path, f"link{number}", f"folder{number}/{name}", "../" * 20 + path, f"/proc/self/root{path}",
                f"/proc/self/cwd/link{number}", f"/proc/{os.getpid()}/root{path}"]:
        refused(way)
    try:
        os.chdir(folder)
        refused(name)
    except OSError:
        pass
    os.chdir(here)
    try:
        os.link(path, f"hard{number}")
        refused(f"hard{number}")
    except OSError:
        pass


def changed_meanwhile(path):
    """Two addresses of one length take turns: the own socket's, and the other's."""
    size = 2 + 108
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("own")
        listener.listen(100)
        family = socket.AF_UNIX.to_bytes(2, sys.byteorder)
        contents = [family + name.encode().ljust(108, b"\0") for name in ("own", path)]
        address = ctypes.create_string_buffer(contents[0], size)
        over = threading.Event()

        def turns():
            while not over.is_set():
                for content in contents:
                    ctypes.memmove(address, content, size)

        turning = threading.Thread(target=turns)
        turning.start()
        for _ in range(300):
            with socket.socket(socket.AF_UNIX) as own:
                own.setblocking(False)
                if libc.connect(own.fileno(), address, size) == 0 and own.getpeername() != "own":
                    print("ESCAPED by a change")
            listener.setblocking(False)
            try:
                listener.accept()[0].close()
            except OSError:
                pass
        over.set()
        turning.join()
    os.unlink("own")


if hasattr(socket, "AF_UNIX"):
    for path in sys.argv[1:]:
        try:
            changed_meanwhile(path)
        except OSError:
            # There are no sockets here.
            pass
print("done")
