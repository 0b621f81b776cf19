"""The ``offshoot`` command: becomes the program that this package carries."""

import os
import sys

from offshoot.command import command


def main() -> None:
    program = command()
    os.execv(program, [program, *sys.argv[1:]])


if __name__ == "__main__":
    main()
