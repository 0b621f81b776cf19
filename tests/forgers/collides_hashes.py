"""Takes the runner's place on the channel, and answers each question with a set of integers that have one hash: to
read it takes minutes."""

import marshal
import os

PRIME = (1 << 61) - 1
COUNT = 50_000


def put(kind, payload=b""):
    frame = (1 + len(payload)).to_bytes(4, "little") + kind + payload
    while frame:
        frame = frame[os.write(3, frame):]


def get(count):
    taken = b""
    while len(taken) < count:
        part = os.read(3, count - len(taken))
        if not part:
            os._exit(0)
        taken += part
    return taken


def colliding():
    head = COUNT.to_bytes(4, "little")
    written = marshal.dumps(("value", [PRIME * ix for ix in range(1, COUNT + 1)], []), 2)
    return written.replace(b"[" + head, b"<" + head, 1)


put(b"L")
slow = colliding()
while True:
    question = get(int.from_bytes(get(4), "little"))
    if marshal.loads(question[1:])[0] == "names":
        functions = (Ellipsis, "dict", [("add", (Ellipsis, "object", 0, "function"))])
        put(b"R", marshal.dumps(("value", functions, []), 2))
    else:
        put(b"R", slow)
