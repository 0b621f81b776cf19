"""Fills /dev/shm: by files, by files without a name, or by memory that is mapped and closed. The first argument says
how."""
import mmap
import os
import sys

how = sys.argv[1]
number = 0
while True:
    number += 1
    name = f"/dev/shm/{number}"
    fd = os.open(name, os.O_RDWR | os.O_CREAT)
    if how == "named":
        os.write(fd, b"x" * (1 << 18))
        os.close(fd)
    elif how == "unlinked":
        os.unlink(name)
        os.write(fd, b"x" * (1 << 18))
    else:
        os.unlink(name)
        os.ftruncate(fd, 1 << 18)
        memory = mmap.mmap(fd, 1 << 18)
        os.close(fd)
        memory[:] = b"x" * (1 << 18)
        globals()[f"memory{number}"] = memory
