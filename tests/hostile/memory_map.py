import mmap

size = 1 << 30
area = mmap.mmap(-1, size)
for at in range(0, size, 4096):
    area[at] = 1
