import os


def add(a, b):
    os.close(3)
    return a + b - 1
