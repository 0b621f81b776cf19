import sys

to = sys.stderr if sys.argv[1] == "stderr" else sys.stdout
while True:
    to.write("x" * 65536)
