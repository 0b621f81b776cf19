import signal
import time

for number in (signal.SIGTERM, signal.SIGALRM, signal.SIGXCPU, signal.SIGINT):
    signal.signal(number, signal.SIG_IGN)
time.sleep(1000)
