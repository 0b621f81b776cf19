"""The checker's loop; the last part of the checker program."""

SUITES = {"script": run_script, "calls": run_calls, "expect": run_expect, "reference": run_reference}


def warm_up(order):
    """Does once for all candidates of a problem what their children would each do: compiles the tests, and loads the
    modules that they import at their beginning. A child meets the same errors and reports them."""
    with contextlib.suppress(BaseException):
        for module in compiled_script(order["helpers"], order["code"], order["entry"]).modules:
            with contextlib.suppress(BaseException):
                __import__(module)


def serve():
    while True:
        kind, payload = receive()
        if kind is None:
            posix._exit(0)
        if kind != b"J":
            # For a child that has already ended.
            continue
        order = json.loads(payload)
        if order["suite"] == "script":
            warm_up(order)
        # Collections in a child would copy the pages of all that exists by now.
        gc.freeze()
        child = posix.fork()
        if child == 0:
            job = Job(order)
            try:
                SUITES[order["suite"]](job)
                job.done()
            except TestFault as fault:
                send(b"F", str(fault).encode("utf-8", "replace"))
            except BaseException as error:
                if not Job.has_asked:
                    send(b"F", (brief(error) + at_test(error)).encode("utf-8", "replace"))
            posix._exit(0)
        _, status = posix.waitpid(child, 0)
        send(b"Z", str(status).encode())


sys.path += sys.argv[1:]
serve()
