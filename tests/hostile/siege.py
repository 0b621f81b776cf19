"""Programs that try to pass the limits or to leave their place: each deed in each place that fits it. `siege.py` prints
their names; `siege.py NAME` does one and prints DONE if it succeeds. The limits are 128 MiB of memory, half a second of
processor time, 1 MiB of files, 16 processes. Who has passed a limit keeps what it holds for HELD seconds, because a
supervisor that measures looks from time to time, and a busy machine lets it wait.
"""
import ctypes
import hashlib
import itertools
import mmap
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import zlib

libc = ctypes.CDLL(None, use_errno=True)
MIB = 1 << 20
MUCH = 400 * MIB
WRITTEN = 16 * MIB
BURNT = 1.5
HELD = 1.0
kept = []


# Memory: each holds MUCH.


def touched(area, size=MUCH):
    for at in range(0, size, 4096):
        area[at] = 1
    kept.append(area)


def heap():
    kept.append(bytearray(b"x") * MUCH)


def small_objects():
    kept.append([object() for _ in range(MUCH // 24)])


def private_map():
    touched(mmap.mmap(-1, MUCH, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))


def shared_map():
    touched(mmap.mmap(-1, MUCH))


def shared_map_given_up():
    area, step = mmap.mmap(-1, MUCH), 8 * MIB
    for begin in range(0, MUCH, step):
        for at in range(begin, begin + step, 4096):
            area[at] = 1
        area.madvise(mmap.MADV_DONTNEED, begin, step)
    kept.append(area)


def map_of_zeros(shared=False):
    with open("/dev/zero", "r+b", buffering=0) as zero:
        touched(mmap.mmap(zero.fileno(), MUCH, flags=mmap.MAP_SHARED if shared else mmap.MAP_PRIVATE))


def shared_map_of_zeros():
    map_of_zeros(shared=True)


def huge_pages():
    area = mmap.mmap(-1, MUCH, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    area.madvise(getattr(mmap, "MADV_HUGEPAGE", 14))
    touched(area)


def moved_map():
    area = mmap.mmap(-1, MUCH // 8, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for part in range(1, 8):
        area.resize(MUCH // 8 * (part + 1))
    touched(area)


def break_moved():
    libc.sbrk.restype = ctypes.c_void_p
    begin = libc.sbrk(ctypes.c_long(MUCH))
    if begin in (None, 2**64 - 1):
        raise MemoryError
    ctypes.memset(begin, 1, MUCH)


def unpacked():
    kept.append(zlib.decompress(zlib.compress(bytes(MUCH), 1)))


def number():
    kept.append(1 << (MUCH * 8))


def text():
    kept.append("é" * (MUCH // 2) + "\U0001f600")


def memory_file():
    file = os.memfd_create("m")
    os.posix_fallocate(file, 0, MUCH)


def shared_memory_file():
    with open("/dev/shm/file", "wb", buffering=0) as file:
        for _ in range(MUCH // MIB):
            file.write(bytes(MIB))


def stacks():
    threading.stack_size(64 * MIB)

    def deep():
        area = (ctypes.c_char * (48 * MIB))()
        kept.append(area)
        ctypes.memset(area, 1, len(area))
        time.sleep(0.2)

    threads = [threading.Thread(target=deep) for _ in range(MUCH // (48 * MIB) + 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def copies_in_children():
    """What a parent has is copied by each child that writes to it."""
    area = bytearray(b"x") * (60 * MIB)
    children = []
    for _ in range(6):
        child = os.fork()
        if child == 0:
            for at in range(0, len(area), 4096):
                area[at] = 2
            time.sleep(0.3)
            os._exit(0)
        children.append(child)
    statuses = [os.waitpid(child, 0)[1] for child in children]
    if any(statuses):
        raise MemoryError


def parts_in_children():
    children = []
    for _ in range(8):
        child = os.fork()
        if child == 0:
            part = bytearray(b"x") * (MUCH // 8)
            time.sleep(0.3)
            os._exit(part[0] == 0)
        children.append(child)
    if any(os.waitpid(child, 0)[1] for child in children):
        raise MemoryError


def sockets_filled():
    for _ in range(120):
        pair = socket.socketpair()
        for end in pair:
            end.setblocking(False)
            for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
                end.setsockopt(socket.SOL_SOCKET, option, 64 * MIB)
            try:
                while True:
                    end.send(bytes(1 << 16))
            except BlockingIOError:
                pass
        kept.append(pair)
    # 120 pairs of the usual size hold less than the limit: what counts is whether they held more.
    if sum(pair[0].getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) for pair in kept) < MUCH:
        raise MemoryError


def page_tables():
    """One page of each 2 MiB costs a page of tables too."""
    size = 12 << 30
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000
    area = mmap.mmap(-1, size, flags=flags)
    for _ in range(4):
        for at in range(0, size, 2 * MIB):
            area[at] = 1
    kept.append(area)
    raise SystemExit(0 if size // (2 * MIB) * 8192 > MUCH else 3)


# Processor time: each burns BURNT seconds.


def burn(seconds=BURNT):
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def hashing():
    end = time.process_time() + BURNT
    while time.process_time() < end:
        hashlib.sha256(bytes(MIB)).digest()


def power():
    end = time.process_time() + BURNT
    while time.process_time() < end:
        pow(3, 200_000)


def expression():
    re.match(r"(a+)+$", "a" * 27 + "b")
    burn()


def in_turns():
    for _ in range(30):
        burn(BURNT / 30)
        time.sleep(0.01)


def by_threads():
    threads = [threading.Thread(target=hashlib.pbkdf2_hmac, args=("sha256", b"a", b"b", 1_000_000)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def by_children(reaped=True, each=0.15):
    if not reaped:
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for _ in range(int(BURNT / each)):
        child = os.fork()
        if child == 0:
            burn(each)
            os._exit(0)
        try:
            os.waitpid(child, 0)
        except ChildProcessError:
            pass


def by_children_reaped_by_the_kernel():
    by_children(reaped=False)


def by_short_children():
    by_children(each=0.003)


def by_short_children_reaped_by_the_kernel():
    by_children(reaped=False, each=0.003)


def by_a_chain():
    """Each process is the child of the one before, which ends."""
    begin, end = os.pipe()
    for _ in range(int(BURNT / 0.1)):
        if os.fork():
            if not kept:
                os.close(end)
                os.read(begin, 1)
                return
            os._exit(0)
        kept.append(0)
        burn(0.1)
    os._exit(0)


def by_programs():
    for _ in range(int(BURNT / 0.3)):
        subprocess.run(["/bin/sh", "-c", "i=0; while [ $i -lt 150000 ]; do i=$((i+1)); done"], check=True)


def without_alarms():
    for alarm in (signal.SIGXCPU, signal.SIGPROF, signal.SIGVTALRM, signal.SIGALRM, signal.SIGTERM):
        signal.signal(alarm, signal.SIG_IGN)
    (resource.setrlimit(resource.RLIMIT_CPU, (resource.RLIM_INFINITY, resource.RLIM_INFINITY)) if os.getuid() == 0
     else None)
    burn()


# Files: each writes WRITTEN.


def write_all(file, size=WRITTEN, step=4096):
    for _ in range(size // step):
        os.write(file, b"x" * step)


def one_file():
    write_all(os.open("one", os.O_CREAT | os.O_WRONLY), step=1 << 16)


def small_writes():
    write_all(os.open("one", os.O_CREAT | os.O_WRONLY), step=512)


def many_files():
    for number in range(WRITTEN // 4096):
        write_all(file := os.open(str(number), os.O_CREAT | os.O_WRONLY), 4096)
        os.close(file)


def many_empty_files():
    for number in range(20_000):
        os.close(os.open(f"{number:0200}", os.O_CREAT | os.O_WRONLY))


def many_folders():
    for number in range(20_000):
        os.mkdir(str(number))


def many_links():
    for number in range(20_000):
        os.symlink("x" * 4000, str(number))


def deep_folders():
    for _ in range(3000):
        os.mkdir("d" * 200)
        os.chdir("d" * 200)
        write_all(file := os.open("f", os.O_CREAT | os.O_WRONLY), 4096)
        os.close(file)


def unlinked_file():
    file = os.open("gone", os.O_CREAT | os.O_WRONLY)
    os.unlink("gone")
    write_all(file)


def unnamed_file():
    write_all(os.open(".", os.O_TMPFILE | os.O_WRONLY))


def unlinked_files():
    for number in range(64):
        kept.append(os.open(str(number), os.O_CREAT | os.O_WRONLY))
        os.unlink(str(number))
        write_all(kept[-1], WRITTEN // 64)


def mapped_file():
    for number in range(32):
        file = os.open(str(number), os.O_CREAT | os.O_RDWR)
        os.ftruncate(file, MIB // 2)
        area = mmap.mmap(file, MIB // 2)
        os.close(file)
        os.unlink(str(number))
        touched(area, MIB // 2)


def allocated_files():
    for number in range(64):
        os.posix_fallocate(os.open(str(number), os.O_CREAT | os.O_WRONLY), 0, MIB // 2)


def copied_files():
    source = os.open("source", os.O_CREAT | os.O_RDWR)
    write_all(source, MIB // 4)
    for number in range(64):
        copy = os.open(str(number), os.O_CREAT | os.O_WRONLY)
        os.sendfile(copy, source, 0, MIB // 4)
        os.close(copy)


def files_in_flight():
    kept.extend(socket.socketpair())
    for number in range(64):
        file = os.open(str(number), os.O_CREAT | os.O_WRONLY)
        os.unlink(str(number))
        write_all(file, MIB // 4)
        socket.send_fds(kept[0], [b"x"], [file])
        os.close(file)


def attributes():
    for number in range(2000):
        os.close(os.open(str(number), os.O_CREAT | os.O_WRONLY))
        os.setxattr(str(number), "user.x", b"x" * 3000)


def shared_memory_files():
    for number in range(64):
        write_all(os.open(f"/dev/shm/{number}", os.O_CREAT | os.O_WRONLY), MIB // 4)


def output(to):
    for _ in range(WRITTEN // (1 << 16)):
        os.write(to, b"x" * (1 << 16))


def to_stdout():
    output(1)


def to_stderr():
    output(2)


# Processes.


def living(count, how):
    """More processes or threads at once than are allowed."""
    for _ in range(count):
        how()


def forked():
    if os.fork() == 0:
        time.sleep(1)
        os._exit(0)


def many_children():
    living(40, forked)


def many_threads():
    living(40, lambda: threading.Thread(target=time.sleep, args=(1,), daemon=True).start())


def many_daemons():
    def daemon():
        child = os.fork()
        if child == 0:
            os.setsid()
            ended(forked)
        if os.waitpid(child, 0)[1]:
            raise OSError("refused")

    living(40, daemon)


def bomb():
    end = time.time() + 0.4
    while time.time() < end:
        try:
            os.fork()
        except OSError:
            pass
    raise SystemExit(3)


# What is not allowed at all.


def read(path):
    with open(path, "rb") as file:
        file.read(1)


def make(path):
    with open(path, "wb") as file:
        file.write(b"x")
    os.unlink(path)


def call(number, *arguments):
    """A system call of x86-64 that must fail."""
    if os.uname().machine != "x86_64" or libc.syscall(number, *arguments) < 0:
        raise OSError(ctypes.get_errno(), "refused")


def any_other_process():
    others = [int(name) for name in os.listdir("/proc")
              if name.isdigit() and int(name) not in (os.getpid(), os.getppid())]
    if not others:
        raise OSError("none is seen")
    return others


def kill_others():
    for process in any_other_process():
        os.kill(process, 0)


def kill_all():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.kill(-1, signal.SIGTERM)
    for process in any_other_process():
        os.kill(process, signal.SIGTERM)


def connect(family, kind, address):
    socket.socket(family, kind).connect(address)


def listen():
    server = socket.socket()
    server.bind(("127.0.0.1", 0))
    server.listen()


def own_more_descriptors():
    if not [name for name in range(4, 200) if is_open(name)]:
        raise OSError("none is open")


def is_open(descriptor):
    try:
        os.fstat(descriptor)
        return True
    except OSError:
        return False


def write_to_a_program():
    os.close(os.open(sys.executable, os.O_WRONLY))


def raised(limit):
    soft, hard = resource.getrlimit(limit)
    resource.setrlimit(limit, (hard + 1, hard + 1))


def others_folders():
    own = os.getcwd()
    found = [name for name in os.listdir(os.path.dirname(own)) if os.path.join(os.path.dirname(own), name) != own]
    for name in found:
        os.listdir(os.path.join(os.path.dirname(own), name))
    if not found:
        raise OSError("none is seen")


FORBIDDEN = {
    "read_shadow": lambda: read("/etc/shadow"),
    "read_accounts": lambda: read("/etc/passwd"),
    "read_host_keys": lambda: read("/etc/ssh/ssh_host_rsa_key"),
    "read_home": lambda: os.listdir("/root"),
    "read_homes": lambda: os.listdir("/home"),
    "read_log": lambda: os.listdir("/var/log"),
    "read_environment_of_init": lambda: read("/proc/1/environ"),
    "read_memory_of_parent": lambda: read(f"/proc/{os.getppid()}/mem"),
    "read_files_of_parent": lambda: os.listdir(f"/proc/{os.getppid()}/fd"),
    "read_kernel_log": lambda: read("/dev/kmsg"),
    "read_memory_device": lambda: read("/dev/mem"),
    "read_block_device": lambda: read("/dev/vda"),
    "read_groups": lambda: read("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
    "list_others_folders": others_folders,
    "write_tmp": lambda: make("/tmp/siege"),
    "write_var_tmp": lambda: make("/var/tmp/siege"),
    "write_root": lambda: make("/siege"),
    "write_usr": lambda: make("/usr/lib/siege"),
    "write_above": lambda: make("../siege"),
    "write_link": lambda: (os.symlink("/tmp", "t"), make("t/siege")),
    "write_kernel_setting": lambda: open("/proc/sys/kernel/hostname", "w").write("x"),
    "write_own_group": lambda: open("/sys/fs/cgroup/memory/tasks", "w").write(str(os.getpid())),
    "write_spare_from_memory": lambda: open("/proc/self/oom_score_adj", "w").write("-1000"),
    "write_program": write_to_a_program,
    "make_device": lambda: os.mknod("device", 0o600 | 0o020000, os.makedev(1, 1)),
    "kill_others": kill_others,
    "kill_all": kill_all,
    "kill_parent": lambda: os.kill(os.getppid(), signal.SIGKILL),
    "stop_parent": lambda: os.kill(os.getppid(), signal.SIGSTOP),
    "become_root": lambda: os.setuid(0) if os.getuid() else call(-1),
    "become_group": lambda: os.setgid(0) if os.getgid() else call(-1),
    "take_groups": lambda: os.setgroups([0]),
    "change_root": lambda: os.chroot("."),
    "more_priority": lambda: os.nice(-5),
    "real_time": lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1)),
    "pin_parent": lambda: os.sched_setaffinity(os.getppid(), {0}),
    "raise_memory_limit": lambda: raised(resource.RLIMIT_DATA),
    "raise_time_limit": lambda: raised(resource.RLIMIT_CPU),
    "raise_process_limit": lambda: raised(resource.RLIMIT_NPROC),
    "raise_file_limit": lambda: raised(resource.RLIMIT_FSIZE),
    "raise_descriptor_limit": lambda: raised(resource.RLIMIT_NOFILE),
    "limits_of_parent": lambda: resource.prlimit(os.getppid(), resource.RLIMIT_CPU, (1, 1)),
    "connect_here": lambda: connect(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 22)),
    "connect_by_datagram": lambda: connect(socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", 53)),
    "connect_six": lambda: connect(socket.AF_INET6, socket.SOCK_DGRAM, ("::1", 53)),
    "connect_to_abstract": lambda: connect(socket.AF_UNIX, socket.SOCK_STREAM, "\0siege"),
    "connect_to_system_bus": lambda: connect(socket.AF_UNIX, socket.SOCK_STREAM, "/run/dbus/system_bus_socket"),
    "listen": listen,
    "raw_socket": lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW),
    "netlink": lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW),
    "datagram_pair": lambda: socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM),
    "inherited_descriptors": own_more_descriptors,
    "trace": lambda: call(101, 16, os.getppid(), 0, 0),
    "read_process": lambda: call(310, os.getppid(), 0, 0, 0, 0, 0),
    "mount": lambda: call(165, b"none", b".", b"tmpfs", 0, 0),
    "unmount": lambda: call(166, b"/proc", 2),
    "new_user_namespace": lambda: call(272, 0x10000000),
    "new_mount_namespace": lambda: call(272, 0x00020000),
    "clone_into_namespace": lambda: call(56, 0x10000000 | 17, 0, 0, 0, 0),
    "clone3": lambda: call(435, 0, 0),
    "enter_namespace": lambda: call(308, 0, 0),
    "pivot_root": lambda: call(155, b".", b"."),
    "keys": lambda: call(250, 0, -3, 1, 0, 0),
    "bpf": lambda: call(321, 0, 0, 0),
    "performance_events": lambda: call(298, 0, 0, -1, -1, 0),
    "io_uring": lambda: call(425, 8, 0),
    "asynchronous_io": lambda: call(206, 1, 0),
    "user_faults": lambda: call(323, 0),
    "handles": lambda: call(304, 0, 0, 0),
    "shared_segment": lambda: call(29, 0, 4096, 0o1600),
    "message_queue": lambda: call(68, 0, 0o1600),
    "semaphores": lambda: call(64, 0, 1, 0o1600),
    "posix_queue": lambda: call(240, b"/q", 0o102, 0o600, 0),
    "load_module": lambda: call(175, 0, 0, 0),
    "reboot": lambda: call(169, 0xFEE1DEAD, 672274793, 0, 0),
    "set_clock": lambda: call(227, 0, 0),
    "host_name": lambda: call(170, b"x", 1),
    "swap": lambda: call(167, b"x", 0),
    "accounting": lambda: call(163, 0),
    "type_into_terminal": lambda: call(16, 0, 0x5412, b"x"),
    "no_randomness_of_addresses": lambda: call(135, 0x0040000),
    "secret_memory": lambda: call(447, 0),
    "move_pages_of_parent": lambda: call(279, os.getppid(), 0, 0, 0, 0, 0),
    "advise_parent": lambda: call(440, 0, 0, 0, 0, 0),
    "wider_pipe": lambda: call(72, os.pipe()[0], 1031, 1 << 22),
    "thirty_two_bit_numbers": lambda: call(0x40000000 + 39),
}


# Places: where a deed is done.


def here(deed):
    deed()


def in_a_thread(deed):
    failed = []

    def guarded():
        try:
            deed()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=guarded)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]


def in_a_child(deed):
    child = os.fork()
    if child == 0:
        ended(deed)
    if os.waitpid(child, 0)[1]:
        raise SystemExit(3)


def in_an_orphan(deed):
    """In a session of its own; the first process waits for its word."""
    begin, end = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            try:
                deed()
                os.write(end, b"!")
            except BaseException:
                pass
            os._exit(0)
        os._exit(0)
    os.wait()
    os.close(end)
    if os.read(begin, 1) != b"!":
        raise SystemExit(3)


def behind_an_ended_thread(deed):
    """The first thread ends, so that the process looks like a zombie."""

    def rest():
        ended(deed, say=True)

    threading.Thread(target=rest).start()
    libc.syscall(60 if os.uname().machine == "x86_64" else 93, 0)


def ended(deed, say=False):
    code = 3
    try:
        deed()
        code = 0
        if say:
            os.write(1, b"DONE\n")
    except SystemExit as left:
        code = left.code or 0
    except BaseException:
        pass
    os._exit(code)


MEMORY = [
    heap, small_objects, private_map, shared_map, shared_map_given_up, map_of_zeros, shared_map_of_zeros, huge_pages,
    moved_map, break_moved, unpacked, number, text, stacks, memory_file, shared_memory_file, copies_in_children,
    parts_in_children, sockets_filled, page_tables,
]
TIME = [
    burn, hashing, power, expression, in_turns, by_threads, by_children, by_children_reaped_by_the_kernel,
    by_short_children, by_short_children_reaped_by_the_kernel, by_a_chain, by_programs, without_alarms,
]
FILES = [
    one_file, small_writes, many_files, many_empty_files, many_folders, many_links, deep_folders, unlinked_file,
    unnamed_file, unlinked_files, mapped_file, allocated_files, copied_files, files_in_flight, attributes,
    shared_memory_files, to_stdout, to_stderr,
]
PROCESSES = [many_children, many_threads, many_daemons, bomb]
ELSEWHERE = [in_a_thread, in_a_child, in_an_orphan, behind_an_ended_thread]


def programs():
    found = {f"forbidden.{name}": (here, deed) for name, deed in FORBIDDEN.items()}
    for kind, deeds in (("memory", MEMORY), ("time", TIME), ("files", FILES), ("processes", PROCESSES)):
        places = itertools.cycle(ELSEWHERE)
        for deed in deeds:
            # Here, and in one or two of the other places by turns.
            others = [next(places)] if kind == "files" else [next(places), next(places)]
            for place in [here] + ([] if kind == "processes" else others):
                found[f"{kind}.{deed.__name__}.{place.__name__}"] = (place, held(deed))
    return found


def held(deed):
    def done():
        deed()
        time.sleep(HELD)

    return done


def main():
    if len(sys.argv) < 2:
        print("\n".join(programs()))
        return
    place, deed = programs()[sys.argv[1]]
    place(deed)
    os.write(1, b"DONE\n")
    os._exit(0)


main()
