"""The last part of the runner, for an interpreter from which many candidates are forked."""

import gc

import _offshoot

# What candidates import most; loaded once, here. Modules that start threads, open files or depend on the machine's
# packages are not among them.
OFTEN = (
    "bisect", "collections", "collections.abc", "copy", "datetime", "fractions", "functools", "heapq", "itertools",
    "math", "operator", "os", "random", "re", "statistics", "string", "typing",
)


def begin(arguments, environment):
    """Goes on as a candidate."""
    import os

    os.environ.clear()
    for entry in environment.split(b"\0"):
        name, _, value = entry.partition(b"=")
        os.environb[name] = value
    main(*arguments.decode().split("\0"))


def rehearse():
    """Does what a candidate does, as the interpreter makes some of its own parts at their first use: the classes of
    syntax trees take it a millisecond."""
    names = {}
    exec(compile("from typing import List\n\n\ndef f(x: List[int]) -> List[int]:\n    return [y for y in x]\n",
                 "<string>", "exec"), names)
    read(write(((names["f"]([1]), "a"), {}), objects.opaque), objects.resolve)
    Stream()


def warm_up(version):
    if sys.version.split()[0] != version:
        raise SystemExit(f"{sys.version.split()[0]} instead of Python {version}")
    for module in OFTEN:
        __import__(module)
    rehearse()
    # Collections in a candidate would copy the pages of all that exists by now.
    gc.collect()
    gc.freeze()
    _offshoot.serve(begin)


warm_up(sys.argv[1])
