import os
import resource
import signal
import sys

caller = int(sys.argv[2])
targets = [caller, os.getppid(), -caller, 1]
for target in targets:
    for number in (0, signal.SIGSTOP, signal.SIGKILL):
        try:
            os.kill(target, number)
            if number == 0 and target != 1 and target != os.getppid():
                print("ESCAPED signal to", target)
        except OSError:
            pass
for target in (caller, os.getppid()):
    for deed in (
        lambda: resource.prlimit(target, resource.RLIMIT_CPU, (1, 1)),
        lambda: os.setpriority(os.PRIO_PROCESS, target, 19),
        lambda: os.sched_setaffinity(target, {0}),
        lambda: signal.pidfd_send_signal(os.pidfd_open(target), signal.SIGKILL),
    ):
        try:
            deed()
            print("ESCAPED", target)
        except OSError:
            pass
try:
    os.kill(-1, signal.SIGKILL)
except OSError:
    pass
print("done")
