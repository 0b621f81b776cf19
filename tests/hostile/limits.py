import os
import resource

for name in dir(resource):
    if not name.startswith("RLIMIT_"):
        continue
    which = getattr(resource, name)
    soft, hard = resource.getrlimit(which)
    if hard == resource.RLIM_INFINITY:
        continue
    try:
        resource.setrlimit(which, (hard, hard + 1))
        print("ESCAPED", name)
    except (OSError, ValueError):
        pass
for wanted in range(3, 64):
    try:
        os.fstat(wanted)
        print("ESCAPED descriptor", wanted)
    except OSError:
        pass
known = {"PATH", "LANG", "LC_CTYPE", "HOME", "TMPDIR", "PWD", "OFFSHOOT_NONCE"}
for name in os.environ:
    if name not in known and not name.endswith("_NUM_THREADS"):
        print("ESCAPED environment", name)
os.closerange(0, 1)
os.closerange(2, 256)
os.write(1, b"done\n")
