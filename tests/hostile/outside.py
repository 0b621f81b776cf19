"""Tries to read and write outside its folder. The first argument is a file outside, the second the caller's process."""
import os
import shutil
import sys

outside, caller = sys.argv[1], sys.argv[2]
folder = os.path.dirname(outside)
here = os.getcwd()


def escaped(what):
    print("ESCAPED", what)


def attempt(what, deed):
    try:
        got = deed()
    except (OSError, ValueError, shutil.Error):
        return
    if got is not False:
        escaped(what)


def read(path):
    with open(path, "rb") as file:
        return len(file.read(64)) > 0


def write(path):
    with open(path, "ab") as file:
        file.write(b"ESCAPED")


os.symlink(outside, "link")
os.symlink("/", "root")
os.symlink(folder, "folder")
secrets = [outside, "link", "root" + outside, "/etc/passwd", "/etc/shadow", "/etc/hostname", "/etc/hosts",
           "/proc/mounts"]
secrets += [f"/proc/{pid}/{what}" for pid in (1, os.getppid(), caller)
            for what in ("environ", "cmdline", "maps", "mem", "auxv")]
secrets += [f"/proc/{pid}/{link}{outside}" for pid in ("self", 1, os.getppid(), caller) for link in ("root", "cwd")]
secrets += ["/proc/kcore", "/proc/kallsyms", "/proc/self/environ", "/dev/mem", "/dev/kmsg", "/dev/vda", "/dev/sda",
            "/dev/tty"]
for path in secrets:
    attempt(f"read {path}", lambda: read(path))
for path in [folder, "folder", "/root", "/home", "/tmp", "/etc", "/proc", "/var", os.path.dirname(here)]:
    attempt(f"listed {path}", lambda: os.listdir(path))
    attempt(f"wrote into {path}", lambda: write(path + "/offshoot-escaped"))
    attempt(f"made a folder in {path}", lambda: os.mkdir(path + "/offshoot-escaped-folder"))
# It may have one of its own: nothing is in that, and the caller looks whether anything comes out.
attempt("listed /dev/shm", lambda: len(os.listdir("/dev/shm")) > 0)
attempt("wrote into /dev/shm", lambda: write("/dev/shm/offshoot-escaped") or False)
attempt("ran what it wrote into /dev/shm",
        lambda: shutil.copy("/bin/true", "/dev/shm/true") and os.execv("/dev/shm/true", ["true"]))
for path in [outside, "link", "root" + outside, "../offshoot-escaped", "/usr/lib/offshoot-escaped", "/usr/bin/env",
             sys.executable]:
    attempt(f"wrote {path}", lambda: write(path))
attempt("wrote itself", lambda: write("/proc/self/exe"))
for what in ("kernel/core_pattern", "kernel/hostname", "vm/overcommit_memory"):
    attempt(f"wrote {what}", lambda: write("/proc/sys/" + what))
attempt("cleared its limits", lambda: write("/proc/self/oom_score_adj"))
attempt("linked", lambda: os.link(outside, "hard"))
attempt("renamed", lambda: os.rename(outside, "stolen"))
attempt("removed", lambda: os.unlink(outside))
attempt("cut", lambda: os.truncate(outside, 0))
attempt("changed the mode of", lambda: os.chmod(outside, 0))
attempt("gave away", lambda: os.chown(outside, 12345, 12345))
attempt("dated", lambda: os.utime(outside, (1, 1)))
attempt("marked", lambda: os.setxattr(outside, "user.escaped", b"1"))
attempt("made a device", lambda: os.mknod("device", 0o600 | 0o020000, os.makedev(1, 1)))
attempt("made a block device", lambda: os.mknod("disk", 0o600 | 0o060000, os.makedev(254, 0)))
attempt("became root", lambda: os.setuid(0))
attempt("became root's group", lambda: os.setgid(0))
print("done")
