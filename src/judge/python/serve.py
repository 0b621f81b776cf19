"""The checker's loop; the last part of the checker program."""

SUITES = {"script": run_script, "calls": run_calls, "expect": run_expect, "reference": run_reference}


def serve():
    while True:
        kind, payload = receive()
        if kind is None:
            posix._exit(0)
        if kind != b"J":
            # For a child that has already ended.
            continue
        child = posix.fork()
        if child == 0:
            order = json.loads(payload)
            job = Job(order)
            try:
                SUITES[order["suite"]](job)
                job.done()
            except BaseException as error:
                send(b"F", brief(error).encode("utf-8", "replace"))
            posix._exit(0)
        _, status = posix.waitpid(child, 0)
        send(b"Z", str(status).encode())


sys.path += sys.argv[1:]
serve()
