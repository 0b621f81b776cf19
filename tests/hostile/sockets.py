import os
import socket

names = ["AF_INET", "AF_INET6", "AF_UNIX", "AF_NETLINK", "AF_PACKET", "AF_VSOCK", "AF_ALG", "AF_BLUETOOTH"]
for name in filter(lambda name: hasattr(socket, name), names):
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW):
        if name == "AF_UNIX" and kind == socket.SOCK_STREAM:
            # Its own to have where it has a network of its own.
            continue
        try:
            socket.socket(getattr(socket, name), kind)
            print("ESCAPED", name, kind)
        except OSError:
            pass
try:
    socket.create_connection(("127.0.0.1", 22), 1)
    print("ESCAPED connect")
except OSError:
    pass
try:
    socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    print("ESCAPED datagram pair")
except OSError:
    pass
# A pair of its own is what asyncio wakes itself with.
left, right = socket.socketpair()
left.sendall(b"done\n")
os.write(1, right.recv(10))
# A packet of a pair goes to the other end, whatever address it has.
one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
one.sendto(b"own", "\0abstract")
if other.recv(10) != b"own":
    print("ESCAPED packet of a pair")
for pair in (left, one):
    try:
        pair.connect("\0abstract")
        print("ESCAPED connect of a pair")
    except OSError:
        pass
